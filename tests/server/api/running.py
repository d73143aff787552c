"""A real server in this process: the tiny model, the engine's thread, uvicorn on a free port. Nothing is imitated.

`serving(folder)` is a context manager; `Running` gives tests the address and a look at the engine's books.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import uvloop

from pagemill.model_files import inspect
from pagemill_server.api.app import make_app
from pagemill_server.api.service import Service
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.engine.loop import EngineLoop
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import EngineStats
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.lifecycle import Lifecycle, Phase
from pagemill_server.loading import LoadedModel, load
from pagemill_server.metrics import MeteredRunner
from pagemill_server.serve import http_server
from pagemill_server.settings import Settings

NAME = "tiny/llama"
UNHURRIED = 0.02  # seconds of a step


class Unhurried:
    """A device that takes its time for each step until it is told to hurry: an answer of a few thousand tokens is then under way
    for as long as a test looks at it, on any machine."""

    def __init__(self, runner: ModelRunner) -> None:
        self.hurry = threading.Event()
        self._runner = runner

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self.hurry.wait(UNHURRIED)
        return self._runner.run(output)


@dataclass(frozen=True)
class Running:
    url: str
    service: Service
    model: LoadedModel
    openai: openai.OpenAI  # made as our users make it

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def stats(self) -> EngineStats:
        stats = self.service.stats()
        assert stats is not None
        return stats

    def client(self, **options: Any) -> httpx.Client:
        # Without TLS to verify, a client is made in microseconds instead of the time it takes to read all roots.
        return httpx.Client(base_url=self.url, timeout=60, verify=False, **options)

    def unhurried(self) -> Unhurried:
        """Its device from now on."""
        device = self.model.engine._runner = Unhurried(self.model.engine._runner)
        return device

    def wait_idle(self) -> None:
        """Until nobody holds anything; an AssertionError says what is still held."""
        until(lambda: self.stats.num_running == self.stats.num_waiting == self.service.in_flight == 0, self.stats)
        assert self.stats.kv_cache_usage == 0


def until(condition: Callable[[], bool], otherwise: object = "it never came true", seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)


def settings_for(folder: Path, **cache: Any) -> Settings:
    """In float32, whatever the processor would choose: numbers are compared with transformers'."""
    return Settings(
        ModelOptions(model=NAME, served_names=(NAME, "alias"), dtype="float32"),
        CacheConfig(**({"memory_bytes": 4 << 20} | cache)),
        SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=64),
        ServerConfig(),
    )


@contextmanager
def serving(
    folder: Path, *, loaded: bool = True, settings: Settings | None = None, **options: Any
) -> Iterator[Running]:
    """`options` are Service's. With `loaded=False` the server stands where it does while a model loads."""
    settings = settings or settings_for(folder)
    service = Service(settings.model.served_names, Lifecycle(1000), block_size=settings.cache.block_size, **options)
    model = load(settings, inspect(folder), service.lifecycle, partial(MeteredRunner, metrics=service.metrics))
    server = http_server(make_app(service))
    listener = socket.create_server(("127.0.0.1", 0))

    async def run() -> None:
        engine = None
        if loaded:
            engine = EngineLoop(model.engine)
            service.loaded = model.answering(engine)
            service.lifecycle.enter(Phase.SERVING)
        else:
            service.lifecycle.enter(Phase.LOADING_WEIGHTS)
        await server.serve(sockets=[listener])
        if engine is not None:
            await engine.stop()

    def thread() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    worker = threading.Thread(target=thread, name="server")
    worker.start()
    until(lambda: server.started)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        http = httpx.Client(timeout=60, verify=False)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=0, http_client=http) as client:
            yield Running(url, service, model, client)
    finally:
        server.should_exit = True
        worker.join(120)
        service.close()
        assert not worker.is_alive()
