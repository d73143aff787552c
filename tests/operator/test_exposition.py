"""What is read from a page, and which pages are none."""

from __future__ import annotations

import contextlib
import math

import pytest

from pagemill_operator.exposition import Counters, parse
from pagemill_operator.queries import KV_CACHE_USAGE, MAX_RUNNING, RUNNING, WAITING

LABELS = 'engine="0",model_name="a {b} \\"c\\""'
PAGE = f"""# HELP vllm:num_requests_running num requests running
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{LABELS}}} 3.0
vllm:num_requests_waiting{{{LABELS}}} 2.0
vllm:kv_cache_usage_perc{{{LABELS}}} 0.25
pagemill:max_num_seqs{{{LABELS}}} 16.0
vllm:num_preemptions_total{{{LABELS}}} 7.0
vllm:num_preemptions_created{{{LABELS}}} 1.7e+09
vllm:time_to_first_token_seconds_bucket{{{LABELS},le="0.5"}} 1.0
vllm:time_to_first_token_seconds_bucket{{{LABELS},le="+Inf"}} 4.0
vllm:time_to_first_token_seconds_count{{{LABELS}}} 4.0
something_else{{{LABELS}}} 9.0
"""


def test_what_scaling_needs_is_found_among_the_rest() -> None:
    page = parse(PAGE)
    assert page.gauges == {RUNNING: (3.0,), WAITING: (2.0,), KV_CACHE_USAGE: (0.25,), MAX_RUNNING: (16.0,)}
    assert page.counters == Counters(7.0, ((0.5, 1.0), (math.inf, 4.0)))


def test_what_is_not_there_is_not_a_zero() -> None:
    page = parse("<html>not found</html>")
    assert page.gauges == {RUNNING: (), WAITING: (), KV_CACHE_USAGE: (), MAX_RUNNING: ()}
    assert page.counters == Counters()


def test_two_engines_are_two_values() -> None:
    assert parse('vllm:num_requests_waiting 1\nvllm:num_requests_waiting{a="b"}\t2\n').gauges[WAITING] == (1.0, 2.0)


def test_nan_is_handed_on() -> None:
    assert math.isnan(parse("vllm:kv_cache_usage_perc NaN\n").gauges[KV_CACHE_USAGE][0])


@pytest.mark.parametrize("end", range(1, len('vllm:num_requests_running{engine="0",model_name="a'), 7))
def test_a_page_that_breaks_off_is_refused_or_lacks_the_line(end: int) -> None:
    line = 'vllm:num_requests_running{engine="0",model_name="a'[: end + 1]
    with contextlib.suppress(ValueError):
        assert parse(line).gauges[RUNNING] == ()


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running many",
        "vllm:num_requests_running{a=b} 1",
        'vllm:time_to_first_token_seconds_bucket{a="b"} 1',
    ],
)
def test_a_line_that_can_not_be_read_is_a_page_that_can_not(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the parser's own words are of no use to anybody
        parse(f"{line}\n")
