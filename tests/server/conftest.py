"""What tests of the server share: models that are computed both by our native kernels and by torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.computing import computing, needs_native


@pytest.fixture(params=[pytest.param(True, marks=needs_native), False], ids=["native", "torch"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether our kernels compute the models that a test loads."""
    with computing(native=request.param):
        yield request.param
