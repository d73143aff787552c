"""`pagemill up`: the operator's own reconcile over a cluster of one machine, from a file, until Ctrl-C.

Owns flags, signals, front ports and the look at the file; `cluster.local` runs the processes, `reconcile` decides. Called by
`commands`.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import secrets
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from pagemill.endpoints import MANAGEMENT_TOKEN_ENV, MODELS_ENV, PAGE_PATH
from pagemill.model_files import models_folders
from pagemill_operator import up_file
from pagemill_operator.cluster.interface import Key, Manifest
from pagemill_operator.cluster.local.cluster import LocalCluster
from pagemill_operator.cluster.local.devices import visible_devices
from pagemill_operator.cluster.local.store import Change
from pagemill_operator.condition_lines import became_ready, changed_lines
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.labels import KIND
from pagemill_operator.queue import KeyQueue
from pagemill_operator.reconcile import reconcile
from pagemill_operator.scaling_memory import Memories
from pagemill_operator.settings import Settings, from_environ
from pagemill_operator.worker import Worker

DEFAULT_PORT = 8000
_LOOK_SECONDS = 0.5  # how often the file is looked at
_INTERRUPTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PortTaken(Exception):
    """A front port is somebody else's; the message says which and what to do."""


def run(argv: list[str]) -> int:
    """0 after a clean stop; 1 when a port is taken; raises InvalidManifest for what is wrong with the file at the start."""
    parser = argparse.ArgumentParser(
        prog="pagemill up", description="Run the LLMDeployments of a file on this machine, as a cluster would."
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="LLMDeployments as YAML; - is standard input"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help="of the first LLMDeployment; the next get the next (default: 8000)",
    )
    parser.add_argument(
        "--models", metavar="DIR", help=f"the models folder (default: ${MODELS_ENV}, else the user's cache)"
    )
    flags = parser.parse_args(argv)
    if not 1 <= flags.port <= 65535:
        parser.error(f"--port: {flags.port} is not a port")
    if flags.models:
        os.environ[MODELS_ENV] = str(Path(flags.models).resolve())  # where `run` and so every server looks
    wanted = up_file.load(flags.file)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        # No Job here: the server that is started next looks first, in milliseconds (docs/decisions/007).
        settings = replace(from_environ(os.environ), preflight=False)
        asyncio.run(Up(flags.file, flags.port, settings).run(wanted))
    except PortTaken as error:
        sys.stderr.write(f"pagemill up: {error}\n")
        return 1
    return 0


class Up:
    """One run of the command."""

    def __init__(self, path: str, port: int, settings: Settings) -> None:
        self._path = path
        self._port = port
        self._settings = settings
        self._memories = Memories()
        self._queue = KeyQueue()
        self._token = os.environ.get(MANAGEMENT_TOKEN_ENV, "").strip() or secrets.token_urlsafe(18)
        self._pages: dict[Key, int] = {}  # the management port that was said last
        self._removing: set[asyncio.Task[None]] = set()
        self._interrupts = 0
        self._interrupted = asyncio.Event()

    async def run(self, wanted: dict[Key, Manifest]) -> None:
        self._cluster = LocalCluster(
            devices=visible_devices(os.environ),
            models=os.pathsep.join(str(folder) for folder in models_folders(os.environ)),
            log=_say,
            changed=self._queue.add,
            management_token=self._token,
        )
        self._cluster.store.listen(self._show)
        loop = asyncio.get_running_loop()
        for number in _INTERRUPTED:
            if (
                number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup: it outlives its terminal
                loop.add_signal_handler(number, self._interrupt)
        async with self._cluster:
            await self._put(wanted)
            acting = [
                asyncio.create_task(Worker(self._queue, self._reconcile).run()),
                asyncio.create_task(self._follow_file()),
                asyncio.create_task(self._cluster.failure()),
            ]
            stop = asyncio.create_task(self._interrupted.wait())
            ended, _ = await asyncio.wait((stop, *acting), return_when=asyncio.FIRST_COMPLETED)
            for task in (stop, *acting):
                task.cancel()
            await asyncio.gather(*acting, return_exceptions=True)
            for task in ended:
                await task  # an exception is a bug of ours: no more drain, the cluster's end kills what runs
            await self._drain()

    async def _reconcile(self, key: Key) -> float | None:
        return await reconcile(self._cluster, key, datetime.now(UTC), self._settings, self._memories)

    async def _put(self, wanted: dict[Key, Manifest]) -> None:
        """Open what ports are wanting, then take the manifests over. Raises PortTaken before anything has changed."""
        ports = self._cluster.front_ports()
        for key in wanted:
            if key not in ports:
                ports[key] = await self._open_front(key, set(ports.values()))
        for manifest in wanted.values():
            self._cluster.put_resource(manifest)
        for gone in ports.keys() - wanted.keys():
            task = asyncio.create_task(self._cluster.remove_resource(gone))
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)

    async def _open_front(self, key: Key, taken: set[int]) -> int:
        port = next(port for port in range(self._port, self._port + len(taken) + 1) if port not in taken)
        try:
            await self._cluster.open_front(key, port)
        except (OSError, OverflowError) as error:
            raise PortTaken(f"port {port} for {key.name} is not free: choose another with --port") from error
        return port

    async def _follow_file(self) -> None:
        """Take over every edit of the file; what is wrong with one is said, and what runs goes on."""
        if self._path == "-":
            await asyncio.Event().wait()
        seen = settled = _stamp(self._path)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            stamp = _stamp(self._path)
            if (
                stamp in (None, seen) or stamp != settled
            ):  # an editor may still be writing: wait for a look without a change
                settled = stamp
                continue
            seen = stamp
            try:
                await self._put(up_file.load(self._path))
                _say(f"{datetime.now():%H:%M:%S} {self._path} has changed and is applied")
            except InvalidManifest as error:
                for problem in error.problems:
                    _say(f"pagemill up: {problem}")
                _say("pagemill up: the edit is not applied; what runs goes on as it was")
            except PortTaken as error:
                _say(f"pagemill up: {error}; the edit is not applied")

    async def _drain(self) -> None:
        running = len(self._cluster.store.all("Pod"))
        if running and self._interrupts < 2:
            _say(
                f"{datetime.now():%H:%M:%S} draining {running} replica(s): what runs is finished; Ctrl-C again ends it now"
            )
        await self._cluster.drain()
        await asyncio.gather(*self._removing, return_exceptions=True)

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._interrupted.set()
        if self._interrupts > 1:
            self._cluster.kill()

    def _show(self, change: Change) -> None:
        if change.kind != KIND or change.new is None:
            return
        for line in changed_lines(change.old, change.new, datetime.now()):
            _say(line)
        key = up_file.key_of(change.new)
        if became_ready(change.old, change.new):
            port = self._cluster.front_ports()[key]
            _say(f"{datetime.now():%H:%M:%S} {key.name} answers at http://127.0.0.1:{port}/v1")
        self._show_page(key)

    def _show_page(self, key: Key) -> None:
        """Where its first replica shows its engine: once it is ready, and again when another has taken its place."""
        ports = self._cluster.management_ports(key)
        if ports and self._pages.get(key) not in ports:
            self._pages[key] = ports[0]
            url = f"http://127.0.0.1:{ports[0]}{PAGE_PATH}#token={quote(self._token, safe='')}"
            _say(f"{datetime.now():%H:%M:%S} {key.name} shows its engine at {url}")


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes with the file; None while there is none (an editor may be putting a new one in its place)."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _say(line: str) -> None:
    """A log that can't be written must not end what serves: what it would have said is lost."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno in (
            errno.EPIPE,
            errno.EIO,
        ):  # the pipe's reader or the terminal is gone for good: write to nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # `pagemill up … | head`: end as for a signal; a terminal sends its own, SIGHUP
            os.kill(os.getpid(), signal.SIGTERM)
