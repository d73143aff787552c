"""What stays is not searched for garbage, and the search goes on afterwards."""

import gc
from collections.abc import Iterator

import pytest

from pagemill import garbage


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_nothing_is_searched_while_what_stays_is_made() -> None:
    gc.unfreeze()
    with garbage.staying():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000
    assert kept not in gc.get_objects()


def test_a_program_that_imports_us_keeps_what_is_its_own() -> None:
    gc.unfreeze()
    with garbage.unsearched():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_it_is_searched_again_after_a_failure_and_only_where_it_was_before() -> None:
    with pytest.raises(ImportError), garbage.staying():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage.staying():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_is_gone_before_the_rest_is_let_stay() -> None:
    class Weights:
        freed = False

        def __del__(self) -> None:
            Weights.freed = True

    weights = Weights()
    weights.myself = weights  # type: ignore[attr-defined]
    del weights
    garbage.settle()
    assert Weights.freed
    assert gc.get_freeze_count() > 0


def test_a_server_that_has_all_it_will_have_is_searched_seldom() -> None:
    """With Python's own numbers 200 streams were interrupted for a search of everything every few seconds."""
    gc.set_threshold(700, 10, 10)
    searches: list[int] = []

    def search(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            searches.append(info["generation"])

    garbage.settle()
    gc.callbacks.append(search)
    try:
        kept = [[] for _ in range(200_000)]  # type: ignore[var-annotated]
    finally:
        gc.callbacks.remove(search)
    assert kept
    assert 0 < len(searches) < 150
    assert 2 not in searches
