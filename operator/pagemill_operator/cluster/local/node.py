"""This machine as the one node: runs the store's pods, each in a task, and writes what becomes of them into their status.

Owns scheduling (devices), free ports, replica numbers in the log and the pods' folders. Follows the store; called by `cluster`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from pagemill_operator.cluster.http_probe import NO_ANSWER
from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.cluster.local import pod_status
from pagemill_operator.cluster.local.command import Management
from pagemill_operator.cluster.local.devices import Devices, NotAvailable
from pagemill_operator.cluster.local.pod import PodRun, Site
from pagemill_operator.cluster.local.store import ObjectStore, deployment_of, now

# Below the range that Linux gives to outgoing connections, so that a port stays free while its replica restarts.
_PORTS = range(20_000, 30_000)
_PAUSE = 1.0  # seconds
Log = Callable[[str], None]


class Node:
    """Start and end it with `async with`; `sync` after every change of a pod. Without a token pods have no management port."""

    def __init__(
        self, store: ObjectStore, devices: Devices, models: str, log: Log, management_token: str | None = None
    ) -> None:
        self._store = store
        self._devices = devices
        self._models = models
        self._log = log
        self._management_token = management_token
        self._runs: dict[str, PodRun] = {}  # by uid
        self._names: dict[str, str] = {}  # the name in the log, by uid
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Node:
        self._folder = tempfile.TemporaryDirectory(prefix="pagemill-pods-")
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        self._folder.cleanup()

    def sync(self) -> None:
        """Start pods that no task runs yet, end those that are marked deleted."""
        for pod in self._store.all("Pod"):
            uid, leaving = pod["metadata"]["uid"], "deletionTimestamp" in pod["metadata"]
            if uid in self._runs:
                if leaving:
                    self._runs[uid].leave()
            elif leaving:
                self._store.remove(pod)
            else:
                self._place(pod)

    def kill(self) -> None:
        """SIGKILL everything, now."""
        for run in self._runs.values():
            run.kill()

    async def ask(self, pod: Manifest, path: str, seconds: float) -> Probe:
        run = self._runs.get(pod["metadata"]["uid"])
        return NO_ANSWER if run is None else await run.ask(path, seconds)

    async def text(self, pod: Manifest, path: str, seconds: float) -> str | None:
        """What is not JSON."""
        run = self._runs.get(pod["metadata"]["uid"])
        return None if run is None else await run.text(path, seconds)

    async def manage(
        self, pod: Manifest, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> Probe:
        """The same of its management port."""
        run = self._runs.get(pod["metadata"]["uid"])
        return NO_ANSWER if run is None else await run.manage(method, path, body, seconds)

    def port(self, pod: Manifest) -> int | None:
        """Where the pod listens on 127.0.0.1, or None when it is not placed."""
        run = self._runs.get(pod["metadata"]["uid"])
        return None if run is None else run.port

    def management_port(self, pod: Manifest) -> int | None:
        """Where it shows its page on 127.0.0.1, or None when it is not placed or has none."""
        run = self._runs.get(pod["metadata"]["uid"])
        return None if run is None else run.management_port

    def _place(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        try:
            devices = self._devices.take(pod)
        except NotAvailable as error:
            self._store.set_status(pod, pod_status.unschedulable(pod, str(error), now()))
            return
        folder = Path(self._folder.name, uid)
        try:
            folder.mkdir()
        except OSError as error:
            self._devices.release(uid)
            message = f"0/1 machines are available: no folder for the pod: {error}"
            self._store.set_status(pod, pod_status.unschedulable(pod, message, now()))
            return
        prefix = self._name(pod)
        port, management = self._free_port(), None
        if self._management_token is not None:
            management = Management(self._free_port(but=port), self._management_token)
        site = Site(
            port=port,
            devices=devices,
            models=self._models,
            folder=folder,
            emit=lambda line: self._log(f"{prefix} | {line}"),
            session=self._session,
            management=management,
            config_maps=partial(self._config_map, pod["metadata"]["namespace"]),
        )
        run = PodRun(pod, site, lambda view: self._write_status(pod, view))
        self._runs[uid] = run
        task = asyncio.create_task(self._run(pod, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, pod: Manifest, run: PodRun) -> None:
        uid = pod["metadata"]["uid"]
        try:
            await run.run()
        except OSError as error:  # a full disk, no more processes: the pod goes, and not at once comes the next
            self._log(f"{self._names[uid]} | the pod ends: {error}")
            await asyncio.sleep(_PAUSE)
        finally:
            self._devices.release(uid)
            del self._runs[uid], self._names[uid]
            self._store.remove(pod)

    def _write_status(self, pod: Manifest, view: pod_status.ContainerView) -> None:
        current = self._store.get("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"]:
            self._store.set_status(current, pod_status.scheduled(current, view, now()))

    def _name(self, pod: Manifest) -> str:
        """`name-0`: the lowest number that no other replica of this LLMDeployment has just now."""
        key = deployment_of(pod)
        base = key[1] if key else pod["metadata"]["name"]
        taken = set(self._names.values())
        number = next(number for number in range(len(taken) + 1) if f"{base}-{number}" not in taken)
        self._names[pod["metadata"]["uid"]] = f"{base}-{number}"
        return f"{base}-{number}"

    def _config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        found = self._store.get("ConfigMap", namespace, name)
        return None if found is None else found.get("data") or {}

    def _free_port(self, but: int | None = None) -> int:
        taken = {port for run in self._runs.values() for port in (run.port, run.management_port)} | {but}
        while True:
            port = random.choice(_PORTS)
            if port not in taken and _is_free(port):
                return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((pod_status.LOCAL_ADDRESS, port))
        except OSError:
            return False
    return True
