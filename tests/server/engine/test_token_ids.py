"""The first token id that a model does not have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagemill_server.engine.token_ids import unknown_id


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [((), None), ((0, 9), None), ([10], 10), ((0, -1, 12), -1), ((3, 10**30, -1), 10**30)],
)
def test_the_first_that_is_not_there(ids: Sequence[int], wrong: int | None) -> None:
    assert unknown_id(ids, 10) == wrong
