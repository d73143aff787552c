"""What is remembered of looks, and that it stays small."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pagemill_operator.autoscale_history import LONGEST_GAP, Ask, Change, History
from tests.operator.scaling_worlds import NOW, ago, known

MINUTE = timedelta(seconds=60)


def after(asked: list[int], every: float = 10, window: timedelta = MINUTE) -> History:
    """Looks up to now, the oldest first."""
    history = History(1, NOW - timedelta(seconds=every * (len(asked) - 1)))
    for number, one in enumerate(asked):
        now = NOW - timedelta(seconds=every * (len(asked) - 1 - number))
        history = history.then(one, 1, False, window, now)
    return history


def test_only_asks_that_can_still_be_the_largest_are_kept() -> None:
    assert [ask.desired for ask in after([1, 5, 3, 4, 2, 2, 1]).asks] == [5, 4, 2, 1]
    assert [ask.time for ask in after([2, 2, 2]).asks] == [NOW]


@pytest.mark.parametrize("asked", [[3, 1, 2] * 400, list(range(1200, 0, -1))])
def test_a_history_is_bounded_by_its_window(asked: list[int]) -> None:
    history = after(asked)
    assert len(history.asks) <= 7
    assert history.largest(MINUTE, NOW) == max(
        (Ask(NOW - timedelta(seconds=10 * back), asked[-1 - back]) for back in range(7)),
        key=lambda ask: (ask.desired, ask.time),
    )


def test_the_window_ends_with_its_last_second() -> None:
    history = known(1, asks=(Ask(ago(61), 9), Ask(ago(60), 5), Ask(ago(1), 2)))
    assert history.largest(MINUTE, NOW) == Ask(ago(60), 5)
    assert history.largest(timedelta(seconds=30), NOW) == Ask(ago(1), 2)
    assert history.largest(timedelta(0), NOW) is None


def test_rates_look_back_on_a_minute_and_each_on_its_own_kind() -> None:
    history = known(4, changes=(Change(ago(60), 9), Change(ago(59), 2), Change(ago(30), -3), Change(ago(5), 1)))
    assert (history.added(NOW), history.removed(NOW)) == (3, 3)
    assert history.then(4, 4, False, MINUTE, NOW).changes == history.changes[1:]


def test_a_change_is_what_was_done() -> None:
    history = known(4).then(9, 6, False, MINUTE, NOW)
    assert (history.current, history.changes) == (6, (Change(NOW, 2),))
    assert history.then(9, 6, False, MINUTE, NOW).changes == (Change(NOW, 2),)


def test_a_gap_between_looks_begins_anew() -> None:
    history = after([1, 1, 1])
    late = NOW + LONGEST_GAP + timedelta(seconds=1)
    assert history.seen(NOW + LONGEST_GAP) == LONGEST_GAP + timedelta(seconds=20)
    assert history.seen(late) == timedelta(0)
    assert history.then(1, 1, False, MINUTE, late).since == late


def test_a_longer_window_has_to_fill_first() -> None:
    """What has been forgotten under the shorter one may have asked for more."""
    history = after([1] * 100, window=MINUTE)
    assert history.seen(NOW) == MINUTE


def test_a_minute_after_replicas_came_is_their_time() -> None:
    history = known(1).then(1, 1, True, MINUTE, NOW)
    history = history.then(1, 1, False, MINUTE, NOW + timedelta(seconds=30))
    assert history.just_came(NOW + timedelta(seconds=59))
    assert not history.just_came(NOW + timedelta(seconds=60))
    assert not known(1).just_came(NOW)
