"""Rates and quantiles over looks: as Prometheus has them, also when servers start again, come and go."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from pagemill_operator.exposition import Counters
from pagemill_operator.scraped import Scraped, histogram_quantile, remember

START = datetime(2026, 1, 1, tzinfo=UTC)


def counters(preemptions: float = 0, *counts: float) -> Counters:
    """`counts`: requests within 1 s, within 2 s, and all."""
    return Counters(preemptions, tuple(zip((1.0, 2.0, math.inf), counts, strict=False)))


def seen(*looks: tuple[float, dict[str, Counters]]) -> Scraped:
    """`looks`: seconds since the start, and what each pod said then."""
    scraped = None
    for seconds, said in looks:
        scraped = remember(scraped, START + timedelta(seconds=seconds), said, ["a", "b"])
    assert scraped is not None
    return scraped


def test_a_rate_needs_two_looks() -> None:
    assert seen((0, {"a": counters(5)})).preemptions_per_second("a") is None
    assert seen((0, {"a": counters(5)}), (10, {"a": counters(8)})).preemptions_per_second("a") == 0.3
    assert seen((0, {"a": counters(5)})).preemptions_per_second("b") is None


def test_what_was_before_the_window_is_forgotten() -> None:
    looks = [(float(at), {"a": counters(100 if at else 0)}) for at in range(0, 130, 10)]
    assert seen(*looks).preemptions_per_second("a") == 0


def test_looks_further_apart_than_the_window_still_make_a_rate_but_not_for_ever() -> None:
    assert seen((0, {"a": counters(0)}), (90, {"a": counters(9)})).preemptions_per_second("a") == pytest.approx(0.1)
    assert seen((0, {"a": counters(0)}), (121, {"a": counters(9)})).preemptions_per_second("a") is None


def test_a_server_that_started_again_counts_from_zero() -> None:
    looks = (0, {"a": counters(100, 9, 9, 9)}), (10, {"a": counters(103, 9, 9, 12)}), (20, {"a": counters(2, 0, 0, 1)})
    assert seen(*looks).preemptions_per_second("a") == (3 + 2) / 20
    assert seen(*looks).ttft(0.5) == 2.0, "four requests, all of them above the last bound"


def test_a_restart_that_only_one_counter_shows_is_one_of_all() -> None:
    scraped = seen((0, {"a": counters(0, 5, 5, 5)}), (10, {"a": counters(3, 0, 0, 4)}))
    assert scraped.preemptions_per_second("a") == 0.3
    assert scraped.ttft(0.95) == 2.0, "and not one request fewer"


def test_another_server_under_the_same_name_is_new() -> None:
    scraped = seen((0, {"a": counters(0, 1, 1, 1)}), (10, {"a": counters(9)}))
    assert scraped.preemptions_per_second("a") is None


def test_the_same_moment_twice_and_a_clock_that_was_set_back() -> None:
    assert seen((0, {"a": counters(1)}), (0, {"a": counters(2)})).preemptions_per_second("a") is None
    assert seen((60, {"a": counters(1)}), (0, {"a": counters(2)})).preemptions_per_second("a") is None


def test_a_pod_that_missed_a_look_goes_on_and_one_that_is_gone_does_not() -> None:
    scraped = seen((0, {"a": counters(0)}), (10, {}), (20, {"a": counters(4)}))
    assert scraped.preemptions_per_second("a") == 0.2
    assert remember(scraped, START + timedelta(seconds=30), {}, ["b"]) == Scraped()


def test_the_quantile_is_of_all_pods_increases_together() -> None:
    before = {"a": counters(0, 90, 90, 90), "b": counters(0, 0, 0, 0)}
    after = {"a": counters(0, 91, 91, 91), "b": counters(0, 1, 3, 3)}
    # Four requests: two within 1 s, two more within 2 s.
    assert seen((0, before), (10, after)).ttft(0.5) == 1.0
    assert seen((0, before), (10, after)).ttft(0.75) == 1.5


def test_nobody_got_a_first_token() -> None:
    assert seen((0, {"a": counters(0, 5, 5, 5)}), (10, {"a": counters(0, 5, 5, 5)})).ttft(0.95) is None
    assert seen((0, {"a": counters(0, 5, 5, 5)})).ttft(0.95) is None
    assert Scraped().ttft(0.95) is None


@pytest.mark.parametrize(
    ("quantile", "counts", "expected"),
    [
        (0.5, (10, 20, 20), 1.0),
        (0.25, (10, 20, 20), 0.5),
        (0.95, (10, 20, 20), 1.9),
        (0.95, (0, 20, 20), 1.95),
        (0.95, (10, 10, 20), 2.0),  # beyond the last bound
        (0.95, (0, 0, 1), 2.0),
        (0.5, (10, 5, 20), 1.0),  # not monotonic: of pods with different bounds
        (0.95, (0, 0, 0), None),
        (0.95, (0, 0, math.nan), None),
    ],
)
def test_the_quantile_is_prometheus_own(
    quantile: float, counts: tuple[float, float, float], expected: float | None
) -> None:
    found = histogram_quantile(quantile, list(zip((1.0, 2.0, math.inf), counts, strict=True)))
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_histogram_without_buckets_has_no_quantile() -> None:
    assert histogram_quantile(0.95, []) is None
    assert histogram_quantile(0.95, [(math.inf, 3.0)]) is None
    assert histogram_quantile(0.95, [(1.0, 3.0), (2.0, 3.0)]) is None, "without its end it may have been cut"
