"""The option by which `make golden` writes the golden manifests anew, and a clock."""

from __future__ import annotations

import pytest

from tests.operator.clock import Clock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden", action="store_true", help="rewrite the golden manifests instead of comparing with them"
    )


@pytest.fixture
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--golden", default=False))


@pytest.fixture
def clock() -> Clock:
    return Clock()
