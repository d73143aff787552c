"""From what happened to each request of a replay to the figures of a policy. Pure arithmetic; virtual seconds.

    goodput        share of the requests whose first token came within their own target and whose TPOT kept below one for all
    service ratio  in windows of time: most tokens served over fewest, of the clients that had somebody waiting all through it;
                   tokens are weighted as the fair policy weights them
Called by `replay`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.measure import quantile
from benchmarks.offered import CLASSES
from benchmarks.replay_run import Outcome, Replay, reasons
from benchmarks.step_cost import StepCost

Service = dict[tuple[int, str], float]  # (window, client) → weighted tokens


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one trace."""

    policy: str
    requests: int
    reasons: dict[str, int]  # how they ended
    span_s: float
    output_tok_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    goodput: float  # share of the requests
    ttft_p99_by_class_s: dict[str, float | None]
    goodput_by_class: dict[str, float]
    ttft_p99_heaviest_s: float | None  # of the client that asks most
    ttft_p99_others_s: float | None
    service_ratio_p50: float | None
    service_windows: int  # of which the ratio is the median
    hit_rate: float  # share of the prompts' tokens that the cache brought
    host_hit_rate: float  # of them, from the host tier
    preemptions: int
    steps: int
    cpu_s: float = 0.0  # of this machine, that the replay took


def figures(replay: Replay, cpu_s: float) -> Figures:
    """Sum up a replay that has ended."""
    setting, done = replay.setting, list(replay.outcomes.values())
    stats = replay.engine.stats()
    prompt_tokens = sum(outcome.offered.prompt_tokens for outcome in done)
    span = max(outcome.last for outcome in done) - min(outcome.arrival for outcome in done)
    good = {id(outcome) for outcome in done if _good(outcome, setting.cost, setting.tpot_target)}
    ratios = service_ratios(done, replay.service, setting.window)
    heaviest = _heaviest(done)
    of_class = {kind.name: [one for one in done if one.offered.kind is kind] for kind in CLASSES}
    return Figures(
        policy=setting.scheduler.policy,
        requests=len(done),
        reasons=dict(reasons(done)),
        span_s=span,
        output_tok_s=sum(outcome.tokens for outcome in done) / span,
        ttft_p50_s=_ttft(done, 0.5),
        ttft_p99_s=_ttft(done, 0.99),
        tpot_p50_s=quantile(_tpots(done), 0.5),
        tpot_p99_s=quantile(_tpots(done), 0.99),
        goodput=len(good) / len(done),
        ttft_p99_by_class_s={name: _ttft(some, 0.99) for name, some in of_class.items()},
        goodput_by_class={
            name: sum(id(one) in good for one in some) / max(1, len(some)) for name, some in of_class.items()
        },
        ttft_p99_heaviest_s=_ttft([one for one in done if one.offered.client == heaviest], 0.99),
        ttft_p99_others_s=_ttft([one for one in done if one.offered.client != heaviest], 0.99),
        service_ratio_p50=quantile(ratios, 0.5),
        service_windows=len(ratios),
        hit_rate=sum(outcome.cached for outcome in done) / prompt_tokens,
        host_hit_rate=stats.host_hits / prompt_tokens,
        preemptions=stats.num_preemptions,
        steps=replay.steps,
        cpu_s=cpu_s,
    )


def service_ratios(done: Iterable[Outcome], service: Service, window: float) -> list[float]:
    """One a window in which at least two clients waited all the time; a client that got nothing counts as if it got a token."""
    waiting = _waiting(done)
    by_window: defaultdict[int, list[float]] = defaultdict(list)
    last = max((index for index, _ in service), default=0)
    for client, spans in waiting.items():
        for begin, end in spans:
            first = -int(-begin // window)  # whole windows inside the span
            for index in range(first, min(last, int(end // window))):
                by_window[index].append(max(1.0, service.get((index, client), 0.0)))
    return [max(served) / min(served) for served in by_window.values() if len(served) > 1]


def _waiting(done: Iterable[Outcome]) -> dict[str, list[tuple[float, float]]]:
    """By client, the spans of time in which some request of it had no token yet."""
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for outcome in sorted(done, key=lambda outcome: outcome.arrival):
        mine = spans[outcome.offered.client]
        if mine and outcome.arrival <= mine[-1][1]:
            mine[-1] = (mine[-1][0], max(mine[-1][1], outcome.first))
        else:
            mine.append((outcome.arrival, outcome.first))
    return spans


def _good(outcome: Outcome, cost: StepCost, tpot_target: float) -> bool:
    target = cost.alone_seconds(outcome.offered.prompt_tokens) * outcome.offered.kind.patience
    tpot = outcome.tpot
    return outcome.reason == "length" and outcome.ttft <= target and (tpot is None or tpot <= tpot_target)


def _heaviest(done: Sequence[Outcome]) -> str:
    asked: defaultdict[str, int] = defaultdict(int)
    for outcome in done:
        asked[outcome.offered.client] += outcome.offered.prompt_tokens + outcome.offered.output_tokens
    return max(asked, key=lambda client: asked[client])


def _ttft(some: Iterable[Outcome], share: float) -> float | None:
    return quantile((outcome.ttft for outcome in some if outcome.tokens), share)


def _tpots(done: Iterable[Outcome]) -> list[float]:
    return [tpot for outcome in done if (tpot := outcome.tpot) is not None]
