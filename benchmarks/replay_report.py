"""A replay's figures for people: markdown as it stands in the docs, a row a policy."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import record
from benchmarks.offered import CLASSES, CLIENTS, Offered
from benchmarks.replay_figures import Figures
from benchmarks.replay_run import Setting

HEADINGS = [
    "policy",
    "TTFT p50 / p99 s",
    "TPOT p50 / p99 ms",
    "goodput",
    "hit rate",
    "preempted",
    *(f"{kind.name}: TTFT p99 s, good" for kind in CLASSES),
    "TTFT p99 s, heaviest client / others",
    "service ratio",
]


def describe(requests: Sequence[Offered], setting: Setting) -> str:
    """What is replayed on what, in one line."""
    prompt = sum(request.prompt_tokens for request in requests) / len(requests)
    output = sum(request.output_tokens for request in requests) / len(requests)
    classes = ", ".join(
        f"{kind.name} {kind.share:.0%} (priority {kind.priority}, {kind.patience:g}x)" for kind in CLASSES
    )
    limits, scheduler = setting.limits, setting.scheduler
    return (
        f"{len(requests)} requests, {prompt:.0f} tokens in and {output:.0f} out on average; {limits.num_blocks} blocks of "
        f"{limits.block_size}, {limits.num_host_blocks} in the host tier; {scheduler.max_num_seqs} sequences and "
        f"{scheduler.max_num_batched_tokens} tokens a step\n"
        f"steps of {setting.cost.origin}; {CLIENTS} clients; {classes}; TPOT target {setting.tpot_target:.2f} s"
    )


def progress(one: Figures) -> str:
    """When a policy's replay has ended."""
    ended = ", ".join(f"{count} {reason}" for reason, count in sorted(one.reasons.items()))
    hours = one.span_s / 3600
    return f"{one.policy}: {ended}; {one.steps} steps, {hours:.1f} h in {one.cpu_s:.0f} s of CPU"


def table(found: Sequence[Figures]) -> str:
    return record.table(HEADINGS, [_row(one) for one in found])


def _row(one: Figures) -> list[str]:
    classes = [
        f"{_number(one.ttft_p99_by_class_s[kind.name])}, {one.goodput_by_class[kind.name]:.0%}" for kind in CLASSES
    ]
    hits = f"{one.hit_rate:.1%}" + (f" ({one.host_hit_rate:.1%} host)" if one.host_hit_rate else "")
    ratio = "-" if one.service_ratio_p50 is None else f"{one.service_ratio_p50:.1f} ({one.service_windows} windows)"
    return [
        one.policy,
        f"{_number(one.ttft_p50_s)} / {_number(one.ttft_p99_s)}",
        f"{_number(one.tpot_p50_s, 1e3)} / {_number(one.tpot_p99_s, 1e3)}",
        f"{one.goodput:.1%}",
        hits,
        str(one.preemptions),
        *classes,
        f"{_number(one.ttft_p99_heaviest_s)} / {_number(one.ttft_p99_others_s)}",
        ratio,
    ]


def _number(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return "-"
    return f"{value * scale:.1f}" if value * scale < 100 else f"{value * scale:.0f}"
