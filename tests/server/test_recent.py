"""Medians of the last minute."""

from __future__ import annotations

from pagemill_server.recent import KEPT, WINDOW, Quantiles, Recent


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_quantiles_are_values_that_were_observed() -> None:
    recent = Recent({"a", "b"}, Clock())
    for value in range(1, 101):
        recent.add("a", float(value))
    assert recent.quantiles("a") == Quantiles(100, 50.0, 95.0)
    assert recent.quantiles("b") is None
    recent.add("b", 7.0)
    assert recent.quantiles("b") == Quantiles(1, 7.0, 7.0)


def test_what_is_older_than_the_window_counts_no_more() -> None:
    clock = Clock()
    recent = Recent({"a"}, clock)
    recent.add("a", 1.0)
    clock.now += WINDOW
    recent.add("a", 2.0)
    assert recent.quantiles("a") == Quantiles(2, 1.0, 2.0)
    clock.now += 1
    assert recent.quantiles("a") == Quantiles(1, 2.0, 2.0)
    clock.now += WINDOW
    assert recent.quantiles("a") is None


def test_it_is_bounded_and_keeps_the_newest() -> None:
    recent = Recent({"a"}, Clock())
    for value in range(3 * KEPT):
        recent.add("a", float(value))
    found = recent.quantiles("a")
    assert found is not None
    assert found.count == KEPT
    assert found.p50 >= 2 * KEPT


def test_other_names_are_not_kept() -> None:
    recent = Recent({"a"}, Clock())
    recent.add("z", 1.0)
    assert recent.quantiles("a") is None
