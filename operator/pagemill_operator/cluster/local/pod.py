"""One pod on this machine: starts its container, probes it, restarts it with back-off, ends it. The kubelet's part.

Owns the sequence of states; `process`, `probes` and `pod_status` do the work of each. Knows nothing of other pods or devices:
`node` gives it its site and is told every status.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from pagemill.failures import TERMINATION_LIMIT
from pagemill_operator.cluster import http_probe
from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.cluster.local import probes
from pagemill_operator.cluster.local.command import Management, UnknownSecret, local_command, local_environment
from pagemill_operator.cluster.local.pod_status import CREATING, LOCAL_ADDRESS, ContainerView
from pagemill_operator.cluster.local.process import ContainerProcess, Emit
from pagemill_operator.cluster.local.store import now
from pagemill_operator.cluster.local.volumes import ConfigMaps, NoSuchConfigMap, lay_out, moved

BACKOFF_START = 1.0  # seconds; Kubernetes starts at 10, for whom a restart may cost an image pull
BACKOFF_CAP = 30.0  # seconds; Kubernetes: 300
BACKOFF_RESET = 60.0  # seconds that a container must have run for its next crash to count as the first


@dataclass(frozen=True, slots=True)
class Site:
    """What the machine gives one pod."""

    port: int  # on 127.0.0.1, for the pod's life
    devices: tuple[str, ...]
    models: str  # the models folder
    folder: Path  # the pod's own, for its termination log
    emit: Emit  # takes one line of the container's output
    session: aiohttp.ClientSession
    management: Management | None = None
    config_maps: ConfigMaps = lambda name: None


class PodRun:
    """Runs one pod until `leave`. `report` is called with each new view of its container."""

    def __init__(self, pod: Manifest, site: Site, report: Callable[[ContainerView], None]) -> None:
        self._spec: Mapping[str, Any] = pod["spec"]
        self._container: Mapping[str, Any] = pod["spec"]["containers"][0]
        self._site = site
        self._report = report
        self._view = CREATING
        self._leaving = asyncio.Event()
        self._process: ContainerProcess | None = None
        self._crashes = 0  # in a row

    @property
    def port(self) -> int:
        return self._site.port

    @property
    def management_port(self) -> int | None:
        return None if self._site.management is None else self._site.management.port

    def leave(self) -> None:
        """End: SIGTERM, the pod's grace period, SIGKILL. `run` returns when it is done."""
        self._leaving.set()

    def kill(self) -> None:
        """End now."""
        self._leaving.set()
        if self._process is not None:
            self._process.kill()

    async def ask(self, path: str, seconds: float) -> Probe:
        return await http_probe.get(self._site.session, f"http://{LOCAL_ADDRESS}:{self._site.port}{path}", seconds)

    async def text(self, path: str, seconds: float) -> str | None:
        return await http_probe.text(self._site.session, f"http://{LOCAL_ADDRESS}:{self._site.port}{path}", seconds)

    async def manage(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Probe:
        management = self._site.management
        if management is None:
            return http_probe.NO_ANSWER
        url = f"http://{LOCAL_ADDRESS}:{management.port}{path}"
        return await http_probe.ask(self._site.session, method, url, seconds, token=management.token, body=body)

    async def run(self) -> None:
        """The pod's whole life."""
        self._show(CREATING)
        try:
            while not self._leaving.is_set():
                await self._run_container()
                if not self._leaving.is_set():
                    await self._back_off()
        finally:
            if self._process is not None:
                self._process.kill()
                await self._process.wait()

    async def _run_container(self) -> None:
        """Start the container and stay until it has ended, by itself, by a probe or because the pod leaves."""
        log = self._site.folder / "termination-log"
        log.write_bytes(b"")
        try:
            environ = local_environment(
                self._container,
                os.environ,
                models=self._site.models,
                termination_log=str(log),
                devices=self._site.devices,
                management=self._site.management,
            )
            places = lay_out(self._spec, self._site.config_maps, self._site.folder)
        except (UnknownSecret, NoSuchConfigMap) as error:
            waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
            self._show(replace(self._view, state={"waiting": waiting}))
            await self._leaving.wait()
            return
        begun, started_at = asyncio.get_running_loop().time(), now()
        try:
            container = moved(self._container, places)
            command = local_command(container, self._site.port, self._site.management)
            self._process = await ContainerProcess.start(command, environ, self._site.emit)
        except (
            OSError,
            ValueError,
        ) as error:  # no such program; a NUL or a variable's name that no process can be given
            self._show_ended(128, "StartError", str(error), started_at)
            self._crashes += 1
            return
        self._show(replace(self._view, state={"running": {"startedAt": started_at}}))
        code = await self._supervise(self._process)
        long_lived = asyncio.get_running_loop().time() - begun >= BACKOFF_RESET
        self._crashes = 1 if long_lived else self._crashes + 1
        reason = "OOMKilled" if self._process.was_oom_killed() else "Completed" if code == 0 else "Error"
        self._show_ended(code, reason, _tail(log), started_at)

    async def _supervise(self, process: ContainerProcess) -> int:
        failed = asyncio.Event()

        def give_up(what: str) -> None:
            self._site.emit(f"{what}: the container is restarted")
            failed.set()

        reports = probes.Reports(
            started=lambda: self._show(replace(self._view, started=True)),
            ready=lambda ready: self._show(replace(self._view, ready=ready)),
            failed=give_up,
        )
        probing = asyncio.create_task(probes.watch(probes.read_probes(self._container), self.ask, reports))
        waits = [asyncio.create_task(event.wait()) for event in (failed, self._leaving)]
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((ended, *waits), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            return await process.stop(self._spec.get("terminationGracePeriodSeconds", 30))
        finally:
            for task in (probing, ended, *waits):
                task.cancel()
            await asyncio.gather(probing, ended, *waits, return_exceptions=True)

    async def _back_off(self) -> None:
        seconds = backoff_seconds(self._crashes)
        message = f"back-off {seconds:.0f}s restarting failed container={self._container['name']}"
        if self._crashes > 1:  # one end is no loop; the kubelet too restarts after the first without a word
            self._show(replace(self._view, state={"waiting": {"reason": "CrashLoopBackOff", "message": message}}))
        try:
            await asyncio.wait_for(self._leaving.wait(), seconds)
        except TimeoutError:
            self._view = replace(self._view, restarts=self._view.restarts + 1)

    def _show_ended(self, code: int, reason: str, message: str, started_at: str) -> None:
        terminated: dict[str, Any] = {
            "exitCode": code,
            "reason": reason,
            "startedAt": started_at,
            "finishedAt": now(),
        }
        if message:
            terminated["message"] = message
        state = {"terminated": terminated}
        self._show(replace(self._view, state=state, last_state=state, started=False, ready=False))

    def _show(self, view: ContainerView) -> None:
        self._view = view
        self._report(view)


def backoff_seconds(crashes: int) -> float:
    """How long to wait after the n-th crash in a row: 1, 2, 4 … 30 seconds."""
    return min(BACKOFF_CAP, BACKOFF_START * 2.0 ** min(crashes - 1, 10))


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-TERMINATION_LIMIT:].decode(errors="replace")
    except OSError:
        return ""
