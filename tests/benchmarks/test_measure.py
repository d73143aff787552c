"""The arithmetic of a run, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import Run, Sample, Spread, quantile, ratios, spread, summarise
from benchmarks.report import ratio_row, row


def streamed(start: float, *chunks: float, tokens: int = 0) -> Sample:
    count = tokens or len(chunks)
    return Sample(start, count, end=chunks[-1], chunks=list(chunks), prompt_tokens=10, output_tokens=count)


def test_one_request() -> None:
    sample = streamed(1.0, 1.5, 1.6, 1.8, tokens=5)  # three chunks that held five tokens
    assert sample.ttft == pytest.approx(0.5)
    assert sample.itl == pytest.approx([0.1, 0.2])
    assert sample.tpot == pytest.approx(0.3 / 4)


@pytest.mark.parametrize("sample", [Sample(0.0, 5, end=1.0, output_tokens=5), streamed(0.0, 0.5), Sample(0.0, 1)])
def test_too_little_to_tell(sample: Sample) -> None:
    assert sample.tpot is None
    assert sample.itl == []


def test_a_run() -> None:
    failed = Sample(0.2, 3, end=9.0, chunks=[0.3], output_tokens=1, error="HTTP 500")
    short = streamed(2.0, 3.0, 4.0)
    short.wanted_tokens = 3
    short.cached_tokens = 8
    run = summarise([streamed(0.0, 0.5, 1.5), short, failed])
    assert (run.requests, run.failed, run.short, run.errors) == (3, 1, 1, ("HTTP 500",))
    assert (run.output_tokens, run.prompt_tokens, run.cached_tokens) == (4, 20, 8)
    assert run.wall_s == 9.0
    assert run.output_tok_s == pytest.approx(4 / 9)
    assert run.ttft_p50_s == pytest.approx(0.75)
    assert run.tpot_p50_s == run.itl_p50_s == pytest.approx(1.0)
    assert run.e2e_p50_s == pytest.approx(1.75)


def test_a_run_in_which_nothing_came_back() -> None:
    run = summarise([Sample(0.0, 3, error="refused"), Sample(0.0, 3, error="refused")])
    assert (run.failed, run.output_tok_s, run.ttft_p50_s, run.errors) == (2, 0.0, None, ("refused",))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), abs=1e-6)


def test_no_quantile_of_nothing() -> None:
    assert quantile([], 0.5) is None


def test_over_repetitions() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([None, 4.0]) == Spread(4.0, 4.0, 4.0)
    assert spread([None]) is None
    # each pair by itself: the second pair ran on a machine that was half as fast for both
    assert ratios([10.0, 5.0, 12.0], [5.0, 2.5, 4.0]) == Spread(2.0, 2.0, 3.0)
    assert ratios([None, 1.0], [1.0, 0.0]) is None


def run_of(speed: float, ttft: float | None) -> Run:
    sample = Sample(0.0, 10, end=10 / speed, output_tokens=10, chunks=[] if ttft is None else [ttft, 10 / speed])
    return summarise([sample])


def test_rows_show_median_least_and_most() -> None:
    line = row("w1", "A", [run_of(10, 0.1), run_of(20, 0.2), run_of(40, 0.4)])
    assert line.startswith("w1")
    assert "20.0 (10.0-40.0)" in line
    assert "200.0 (100.0-400.0)" in line
    assert line.endswith("  0")
    assert "-  " in row("w1", "A", [run_of(10, None)])
    assert "2.00 (1.00-2.00)" in ratio_row(
        "w1", [run_of(10, None)] * 3, [run_of(5, None), run_of(5, None), run_of(10, None)]
    )
