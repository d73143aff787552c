"""What a request's outputs say about time: every interval from where it begins to where it ends, on a clock of the test's."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemill import metrics as names
from pagemill_server.engine.engine import NOT_FINITE
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput, SampledToken, SamplingParams
from pagemill_server.metrics import Metrics
from pagemill_server.request_timer import RequestTimer


def samples(metrics: Metrics) -> dict[str, float]:
    """By name; series that differ in a label of their own are added up, buckets left out."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("some/model", block_size=16, stats=lambda: None)


def timed(metrics: Metrics, *outputs: tuple[float, RequestOutput], n: int = 1, max_tokens: int = 9) -> RequestTimer:
    """Arrived at 100, with a prompt of four tokens; each output at its time."""
    request = AddRequest("r", (1, 2, 3, 4), SamplingParams(max_tokens=max_tokens, n=n), arrival=100.0)
    times = iter([at for at, output in outputs if output.tokens])
    timer = RequestTimer(metrics, request, clock=lambda: next(times))
    for _, output in outputs:
        timer.output(output)
    return timer


def out(
    *ids: int, index: int = 0, scheduled: float | None = None, cached: int = 0, error: str | None = None
) -> RequestOutput:
    tokens = tuple(SampledToken(token) for token in ids)
    return RequestOutput("r", tokens, first_scheduled=scheduled, num_cached_tokens=cached, error=error, index=index)


def test_every_interval_has_its_ends(metrics: Metrics) -> None:
    timer = timed(
        metrics,
        (101.5, out(scheduled=101.0, cached=3)),
        (103.0, out(7)),
        (103.5, out(8, 9)),
        (105.0, out(5)),
    )
    timer.finish(0, FinishReason.STOP)
    found = samples(metrics)
    expected = {
        names.TIME_TO_FIRST_TOKEN: (1, 3.0),
        names.INTER_TOKEN_LATENCY: (2, 2.0),
        names.INTER_TOKEN_LATENCY_OLD: (2, 2.0),
        names.QUEUE_TIME: (1, 1.0),
        names.PREFILL_TIME: (1, 2.0),
        names.DECODE_TIME: (1, 2.0),
        names.INFERENCE_TIME: (1, 4.0),
        names.E2E_LATENCY: (1, 5.0),
        names.REQUEST_TIME_PER_OUTPUT_TOKEN: (1, 2.0 / 3),
        names.REQUEST_PROMPT_TOKENS: (1, 4),
        names.REQUEST_PREFILL_COMPUTED_TOKENS: (1, 1),
        names.REQUEST_GENERATION_TOKENS: (1, 4),
        names.REQUEST_MAX_GENERATION_TOKENS: (1, 4),
        names.REQUEST_MAX_TOKENS: (1, 9),
        names.REQUEST_N: (1, 1),
    }
    for name, (count, total) in expected.items():
        assert found[f"{name}_count"] == count, name
        assert found[f"{name}_sum"] == pytest.approx(total), name
    assert found[names.REQUEST_SUCCESS] == 1


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_what_was_cut_short_does_not_blur_the_others(metrics: Metrics, reason: FinishReason) -> None:
    timed(metrics, (103.0, out(7, scheduled=101.0))).finish(0, reason)
    found = samples(metrics)
    assert (found[names.REQUEST_SUCCESS], found[f"{names.TIME_TO_FIRST_TOKEN}_count"]) == (1, 1)
    assert found[f"{names.E2E_LATENCY}_count"] == found[f"{names.REQUEST_GENERATION_TOKENS}_count"] == 0


def test_a_text_that_is_embedded_has_no_tokens_to_time(metrics: Metrics) -> None:
    request = AddRequest("r", (1, 2, 3, 4), SamplingParams(max_tokens=0), arrival=100.0, pooling=True)
    timer = RequestTimer(metrics, request, clock=lambda: 104.0)
    timer.output(RequestOutput("r", (), FinishReason.STOP, first_scheduled=101.0, embedding=(1.0,)))
    timer.finish(0, FinishReason.STOP)
    found = samples(metrics)
    expected = {
        names.E2E_LATENCY: 4.0,
        names.QUEUE_TIME: 1.0,
        names.INFERENCE_TIME: 3.0,
        names.REQUEST_PROMPT_TOKENS: 4,
    }
    for name, total in expected.items():
        assert (found[f"{name}_count"], found[f"{name}_sum"]) == (1, total), name
    for name in (names.TIME_TO_FIRST_TOKEN, names.REQUEST_GENERATION_TOKENS, names.REQUEST_MAX_TOKENS, names.REQUEST_N):
        assert found[f"{name}_count"] == 0, name


def test_values_that_are_not_finite_are_counted(metrics: Metrics) -> None:
    timed(metrics, (101.0, out(error=NOT_FINITE))).finish(0, FinishReason.ERROR)
    assert samples(metrics)[names.CORRUPTED_REQUESTS] == 1


def test_each_sequence_has_its_times_and_the_request_its_prompt(metrics: Metrics) -> None:
    timer = timed(
        metrics,
        (103.0, out(7, scheduled=101.0, cached=2)),
        (103.5, out(8, index=1, scheduled=103.0, cached=4)),  # the prompt's blocks came from its neighbour
        (104.0, out(9)),
        (105.5, out(9, 9, index=1)),
        n=2,
    )
    timer.finish(0, FinishReason.STOP)
    found = samples(metrics)
    assert found[f"{names.E2E_LATENCY}_count"] == 1
    assert found[f"{names.REQUEST_N}_count"] == 0  # not before the last of them
    timer.finish(1, FinishReason.LENGTH)
    timer.finish(1, FinishReason.ABORT)
    timer.abandon()
    found = samples(metrics)
    expected = {
        names.TIME_TO_FIRST_TOKEN: (2, 3.0 + 3.5),
        names.INTER_TOKEN_LATENCY: (2, 1.0 + 2.0),
        names.E2E_LATENCY: (2, 4.0 + 5.5),
        names.QUEUE_TIME: (2, 1.0 + 3.0),
        names.REQUEST_GENERATION_TOKENS: (2, 2 + 3),
        names.REQUEST_MAX_GENERATION_TOKENS: (1, 3),
        names.REQUEST_PROMPT_TOKENS: (1, 4),
        names.REQUEST_PREFILL_COMPUTED_TOKENS: (1, 2),
        names.REQUEST_N: (1, 2),
        names.REQUEST_MAX_TOKENS: (1, 9),
    }
    for name, (count, total) in expected.items():
        assert found[f"{name}_count"] == count, name
        assert found[f"{name}_sum"] == pytest.approx(total), name
    assert found[names.REQUEST_SUCCESS] == 2


def test_what_is_left_is_abandoned_and_what_ended_well_stays(metrics: Metrics) -> None:
    timer = timed(metrics, (103.0, out(7, scheduled=101.0)), n=3)
    timer.finish(0, FinishReason.LENGTH)
    timer.abandon()
    found = samples(metrics)
    assert found[names.REQUEST_SUCCESS] == 3
    assert (found[f"{names.E2E_LATENCY}_count"], found[f"{names.REQUEST_N}_sum"]) == (1, 3)


def test_a_request_that_wants_no_token_has_a_prompt_and_no_times(metrics: Metrics) -> None:
    timed(metrics, max_tokens=0).finish(0, FinishReason.LENGTH)
    found = samples(metrics)
    assert (found[f"{names.REQUEST_PROMPT_TOKENS}_sum"], found[f"{names.E2E_LATENCY}_count"]) == (4, 0)
