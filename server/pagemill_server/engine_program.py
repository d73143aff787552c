"""The program that loads a model and runs its engine for another process. `python -m pagemill_server.engine_program FD`.

What to load comes through the pipe as a `Job`; how far that is, and then the outputs of the engine, go back (`engine/wire`). It
ends with the process that started it. Started by `beside`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from pagemill.failures import Failure, FailureReason, PagemillError
from pagemill_server import cuda_failures
from pagemill_server.api.access_log import LogFormat
from pagemill_server.engine.child import ChildEngine, CountingRunner, Outbox, receive
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.wire import Ended, Entered, Failed, Job, Progress, Started, ToFront, unpack
from pagemill_server.lifecycle import Lifecycle, Phase
from pagemill_server.loading import LoadedModel, load

logger = logging.getLogger(__name__)

_TICK = 0.1  # seconds between looks at what can't be waited for


class _ToldLifecycle(Lifecycle):
    """Says through the pipe what it is told."""

    def __init__(self, total: int, tell: Callable[[ToFront], None]) -> None:
        super().__init__(total)
        self._tell = tell

    def enter(self, phase: Phase) -> None:
        super().enter(phase)
        self._tell(Entered(phase.value))

    def progress(self, done: int, total: int) -> None:
        super().progress(done, total)
        self._tell(Progress(done, total))


def main(argv: list[str]) -> int:
    """Entry point; returns the exit code."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormat())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for number in (signal.SIGINT, signal.SIGTERM):  # a stop is the front end's to make: what runs may finish
        signal.signal(number, signal.SIG_IGN)
    pipe: Connection = Connection(int(argv[1]))
    try:
        job: Job = unpack(pipe.recv_bytes())
        return _run(pipe, job)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the front end has gone
        return 0


def _run(pipe: Connection, job: Job) -> int:
    tell, commands = Outbox(pipe).put, receive(pipe)
    counted: list[CountingRunner] = []

    def count(runner: ModelRunner) -> ModelRunner:
        counted.append(CountingRunner(runner))
        return counted[0]

    lifecycle = _ToldLifecycle(job.files.weights_bytes, tell)
    try:
        model = load(job.settings, job.files, lifecycle, count)
    except Exception as error:
        if not isinstance(error, PagemillError):
            logger.exception("the model could not be loaded")
        tell(Failed(failure_of(error)))
        return 1
    engine = model.engine
    assert lifecycle.memory is not None
    assert lifecycle.capacity is not None
    tell(Started(model.limits, engine.config, engine.stats(), engine.snapshot(), lifecycle.memory, lifecycle.capacity))
    threading.Thread(target=_watch, args=(model, tell), name="trouble", daemon=True).start()
    ChildEngine(engine, commands, tell, counted[0]).run()
    model.close()
    return 0


def _watch(model: LoadedModel, tell: Callable[[ToFront], None]) -> None:
    """An engine that sleeps would not see that no later step can succeed."""
    while (why := model.trouble()) is None:
        time.sleep(_TICK)
    tell(Ended(why, None))
    os._exit(1)


def failure_of(error: Exception) -> Failure:
    """Why a start failed, in words to act on."""
    if isinstance(error, PagemillError):
        return error.failure
    text = f"{type(error).__name__}: {error}"
    return cuda_failures.classify(text) or Failure(FailureReason.ENGINE_FAILED, text)


if __name__ == "__main__":
    ended = main(sys.argv)
    logging.shutdown()
    os._exit(ended)  # a device that hangs must not keep the process
