"""A server with OpenAI's API as a contestant: started on a free port, asked for one token, measured by the load client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.client import Target, replay
from benchmarks.measure import Sample
from benchmarks.peers import process
from benchmarks.peers.contestant import Contestant, Embed, PeerError, Replay
from benchmarks.workloads import Prompt, Workload

PATIENCE = 600.0  # seconds until ready
_LOOK = 0.02  # seconds between two looks
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def serving(
    name: str,
    command: Callable[[int], Sequence[str]],
    *,
    model: str,
    ready_path: str,
    environ: Mapping[str, str] | None = None,
    embeds: bool = False,
) -> Iterator[Contestant]:
    """`command` of a port; `model` is its name at the server; `ready_path` answers 200 once it serves."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    began = time.perf_counter()
    with process.started(name, command(port), environ) as (running, log):
        _wait(running, log, began, lambda: _ready(base + ready_path))
        ready = time.perf_counter() - began
        _wait(running, log, began, lambda: _first(base, model, embeds))
        first = time.perf_counter() - began
        yield Contestant(
            name,
            running.pid,
            ready,
            first,
            replay=None if embeds else _replaying(Target(base, model, prompt="ids")),
            embed=_embedding(base, model) if embeds else None,
        )
        if running.poll() is not None:
            raise PeerError(f"{name} ended with exit code {running.returncode} (log {log}):\n{process.tail(log)}")


def first_answer(base: str, model: str) -> None:
    """Ask for one token, and wait for it. Raises PeerError."""
    began = time.perf_counter()
    while not _first(base, model, embeds=False):
        if time.perf_counter() - began > PATIENCE:
            raise PeerError(f"no token within {PATIENCE:.0f} s")
        time.sleep(_LOOK)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _replaying(target: Target) -> Replay:
    async def ask(workload: Workload, prompts: Sequence[Prompt]) -> list[Sample]:
        return await replay(target, workload, prompts)

    return ask


def _embedding(base: str, model: str) -> Embed:
    async def run(texts: Sequence[str], batch: int, at_a_time: int) -> float:
        waiting = iter([list(texts[start : start + batch]) for start in range(0, len(texts), batch)])
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:

            async def one_client() -> None:
                for some in waiting:
                    async with session.post(f"{base}/v1/embeddings", json={"model": model, "input": some}) as response:
                        response.raise_for_status()
                        body = await response.json()
                    if len(body["data"]) != len(some):
                        raise PeerError(f"{len(some)} sentences were sent, {len(body['data'])} vectors came back")

            began = time.perf_counter()
            await asyncio.gather(*(one_client() for _ in range(at_a_time)))
            return time.perf_counter() - began

    return run


def _wait(running: subprocess.Popen[bytes], log: Path, began: float, done: Callable[[], bool]) -> None:
    while not done():
        if running.poll() is not None:
            raise PeerError(f"it ended with exit code {running.returncode} (log {log}):\n{process.tail(log)}")
        if time.perf_counter() - began > PATIENCE:
            raise PeerError(f"it was not ready after {PATIENCE:.0f} s (log {log}):\n{process.tail(log)}")
        time.sleep(_LOOK)


def _ready(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:  # an HTTPError too: it answers, and is not ready
        return False


def _first(base: str, model: str, embeds: bool) -> bool:
    """One token, or one vector. Some servers say that they are ready a little early."""
    path, body = (
        ("embeddings", {"input": ["Hello"]}) if embeds else ("completions", {"prompt": "Hello", "max_tokens": 1})
    )
    data = json.dumps({"model": model} | body).encode()
    request = urllib.request.Request(f"{base}/v1/{path}", data, {"Content-Type": "application/json"})
    try:
        with _DIRECT.open(request, timeout=PATIENCE) as response:
            return bool(json.loads(response.read())["data" if embeds else "choices"])
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            if error.code == 503:
                return False
            raise PeerError(f"its first answer was HTTP {error.code}: {error.read()[:300]!r}") from None
    except OSError:
        return False
