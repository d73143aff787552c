"""What the tests of autoscaling are made of: a spec, looks at replicas, and a history, each in one line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pagemill_operator.autoscale import Decision, History, decide, remember
from pagemill_operator.signals import ReplicaSignals, Samples
from pagemill_operator.spec_scaling import Autoscaling

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WINDOW = 300


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def spec(**fields: Any) -> Autoscaling:
    return Autoscaling.model_validate({"minReplicas": 1, "maxReplicas": 10, **fields})


def replica(
    waiting: float = 0, running: float = 0, kv: float = 0, preemptions: float | None = 0, *, pod: str = "chat-0"
) -> ReplicaSignals:
    return ReplicaSignals(pod, kv, waiting, running, 8, preemptions)


def look(*replicas: ReplicaSignals, time: datetime = NOW, **fields: Any) -> Samples:
    """Each replica under a name of its own."""
    named = tuple(
        ReplicaSignals(
            f"chat-{number}",
            one.kv_cache_usage,
            one.waiting,
            one.running,
            one.max_running,
            one.preemptions_per_second,
        )
        for number, one in enumerate(replicas)
    )
    return Samples(time=time, replicas=named, **fields)


def quiet(count: int, **fields: Any) -> Samples:
    return look(*[replica()] * count, **fields)


def known(current: int, **fields: Any) -> History:
    """A history that has seen an hour in which nothing was asked for."""
    return History(current, ago(3600), **fields)


def course(
    autoscaling: Autoscaling, history: History, looks: Iterator[Samples] | list[Samples]
) -> list[tuple[Decision, History]]:
    """Every look's decision, acted on, and the history after it."""
    seen = []
    for samples in looks:
        decision = decide(autoscaling, samples, history, samples.time)
        history = remember(autoscaling, history, decision, True, samples.time)
        seen.append((decision, history))
    return seen


def said(decision: Decision) -> tuple[int, str, str, bool]:
    """All of a decision but its words."""
    return decision.desired, decision.decision, decision.rule, decision.active
