"""The probes of one running container, as the kubelet runs them: startup first, then liveness and readiness together.

Owns thresholds and periods. Knows neither the process nor the pod: it reports through three callbacks. Called by `pod`, which
cancels it when the container ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pagemill_operator.cluster.interface import Probe

Ask = Callable[[str, float], Awaitable[Probe]]  # path, seconds


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One HTTP probe; Kubernetes' defaults. Times in seconds."""

    path: str
    initial_delay: float
    period: float
    timeout: float
    failure_threshold: int
    success_threshold: int


@dataclass(frozen=True, slots=True)
class Probes:
    """What a container asks for; None: always passes."""

    startup: ProbeSpec | None
    liveness: ProbeSpec | None
    readiness: ProbeSpec | None


@dataclass(frozen=True, slots=True)
class Reports:
    """`started` once; `ready` on every change; `failed` once, with what to say, when startup or liveness gives up."""

    started: Callable[[], None]
    ready: Callable[[bool], None]
    failed: Callable[[str], None]


def read_probes(container: Mapping[str, Any]) -> Probes:
    """The probes of a container's spec. Only httpGet is known: the operator renders nothing else."""
    startup, liveness, readiness = (
        _read(container.get(f"{name}Probe")) for name in ("startup", "liveness", "readiness")
    )
    return Probes(startup, liveness, readiness)


async def watch(probes: Probes, ask: Ask, reports: Reports) -> None:
    """Probe until cancelled or failed."""
    if probes.startup is not None and not await _until_started(probes.startup, ask):
        reports.failed("startup probe failed")
        return
    reports.started()
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch_readiness(probes.readiness, ask, reports))
        group.create_task(_watch_liveness(probes.liveness, ask, reports))


async def _until_started(spec: ProbeSpec, ask: Ask) -> bool:
    failures = 0
    await asyncio.sleep(spec.initial_delay)
    while failures < spec.failure_threshold:
        if _passes(await ask(spec.path, spec.timeout)):
            return True
        failures += 1
        await asyncio.sleep(spec.period)
    return False


async def _watch_readiness(spec: ProbeSpec | None, ask: Ask, reports: Reports) -> None:
    if spec is None:
        reports.ready(True)
        return
    ready, run = False, 0  # run: answers in a row that speak against `ready`
    await asyncio.sleep(spec.initial_delay)
    while True:
        passes = _passes(await ask(spec.path, spec.timeout))
        run = run + 1 if passes != ready else 0
        if run >= (spec.success_threshold if passes else spec.failure_threshold):
            ready, run = passes, 0
            reports.ready(ready)
        await asyncio.sleep(spec.period)


async def _watch_liveness(spec: ProbeSpec | None, ask: Ask, reports: Reports) -> None:
    if spec is None:
        return
    failures = 0
    await asyncio.sleep(spec.initial_delay)
    while failures < spec.failure_threshold:
        failures = 0 if _passes(await ask(spec.path, spec.timeout)) else failures + 1
        await asyncio.sleep(spec.period if failures < spec.failure_threshold else 0)
    reports.failed("liveness probe failed")


def _passes(answer: Probe) -> bool:
    return 200 <= answer.status < 400


def _read(spec: Mapping[str, Any] | None) -> ProbeSpec | None:
    if spec is None:
        return None
    return ProbeSpec(
        path=spec["httpGet"]["path"],
        initial_delay=spec.get("initialDelaySeconds", 0),
        period=spec.get("periodSeconds", 10),
        timeout=spec.get("timeoutSeconds", 1),
        failure_threshold=spec.get("failureThreshold", 3),
        success_threshold=spec.get("successThreshold", 1),
    )
