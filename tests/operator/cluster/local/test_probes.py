"""Probes against answers that a test lays down: what is reported, in which order."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from pagemill_operator.cluster.interface import Probe
from pagemill_operator.cluster.local.probes import Probes, ProbeSpec, Reports, read_probes, watch


def spec(path: str, failures: int = 3, successes: int = 1) -> ProbeSpec:
    return ProbeSpec(path, 0, 0, 1, failures, successes)


async def play(probes: Probes, **answers: list[int]) -> list[str]:
    """Ask until an answer is wanting, and say what was reported; paths without the slash name the answers."""
    left, said, over = {f"/{name}": deque(found) for name, found in answers.items()}, list[str](), asyncio.Event()

    async def ask(path: str, seconds: float) -> Probe:
        if not left[path]:
            if not any(left.values()):
                over.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return Probe(left[path].popleft(), {})

    def failed(what: str) -> None:
        said.append(what)
        over.set()

    reports = Reports(lambda: said.append("started"), lambda ready: said.append(f"ready {ready}"), failed)
    task = asyncio.create_task(watch(probes, ask, reports))
    await asyncio.wait((task, asyncio.create_task(over.wait())), return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return said


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([503, 0, 200], ["started", "ready True"]),
        ([503, 0, 503], ["startup probe failed"]),
        ([200], ["started", "ready True"]),
    ],
)
async def test_startup_comes_first(answers: list[int], expected: list[str]) -> None:
    assert await play(Probes(spec("/health"), None, spec("/ready")), health=answers, ready=[200]) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([200, 503, 200, 503, 200], ["ready True"]),  # one failure is not two in a row
        ([200, 503, 503, 200], ["ready True", "ready False", "ready True"]),
        ([503, 302], ["ready True"]),
        ([503, 404, 0], []),
    ],
)
async def test_readiness_flips_on_its_thresholds(answers: list[int], expected: list[str]) -> None:
    assert await play(Probes(None, None, spec("/ready", failures=2)), ready=answers) == ["started", *expected]


async def test_liveness_gives_up_after_failures_in_a_row() -> None:
    probes = Probes(None, spec("/health", failures=2), spec("/ready"))
    said = await play(probes, health=[200, 503, 200, 503, 503], ready=[200, 200, 200, 200, 200, 200, 200])
    assert said == ["started", "ready True", "liveness probe failed"]


async def test_without_probes_a_container_is_ready_at_once() -> None:
    assert await asyncio.wait_for(play_to_end(), 60) == ["started", "ready True"]


async def play_to_end() -> list[str]:
    said: list[str] = []
    reports = Reports(lambda: said.append("started"), lambda ready: said.append(f"ready {ready}"), said.append)

    async def ask(path: str, seconds: float) -> Probe:
        raise AssertionError("nothing is to be asked")

    await watch(Probes(None, None, None), ask, reports)
    return said


def test_reading_takes_kubernetes_defaults() -> None:
    probes = read_probes({"livenessProbe": {"httpGet": {"path": "/health", "port": "http"}}})
    assert probes == Probes(None, ProbeSpec("/health", 0, 10, 1, 3, 1), None)
