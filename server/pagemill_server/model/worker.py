"""A process beside the engine's that computes its part of each step, in lockstep. `python -m pagemill_server.model.worker FD`.

It samples nothing and decides nothing: what the engine's process sends is computed in the order in which it comes. When that
process has ended, however it did, so does this one. Started by `workers`.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from pagemill.failures import Failure, FailureReason, PagemillError
from pagemill_server.engine.schedule import SchedulerOutput
from pagemill_server.model.batch import make_batch
from pagemill_server.model.families import Model
from pagemill_server.model.messages import Begin, Failed, Loaded, Meet, Step, ToWorker, Warm
from pagemill_server.model.part import Cache, Part, Setup
from pagemill_server.model.profile import shortened

_LOOK = 0.05  # seconds between looks at copies that are waited for


class Worker:
    """What a message does to this process's part."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._part = Part(setup)
        self._first = shortened(self._part.model, setup.files.config.hidden_size, setup.placement)
        self._scratch = self._part.cache(1)
        self._cache = self._scratch
        self._fetched: set[int] = set()  # tickets of copies that ended here

    def take(self, message: ToWorker) -> None:
        if isinstance(message, Meet):
            self._part.meet()
        elif isinstance(message, Warm):
            self._compute(self._first, self._scratch, message.output)
        elif isinstance(message, Begin):
            self._cache = self._part.cache(message.num_blocks, message.num_host_blocks)
        else:
            self._step(message)

    def _step(self, step: Step) -> None:
        if (copier := self._cache.copier) is not None:
            while not step.fetched <= self._fetched:
                self._fetched |= copier.ended(_LOOK).tickets
            self._fetched -= step.fetched
            copier.begin(step.output.offloads, step.output.fetches)
        self._compute(self._part.model, self._cache, step.output)

    def _compute(self, model: Model, cache: Cache, output: SchedulerOutput) -> None:
        if not output.sequences:
            return
        with torch.inference_mode():
            batch = make_batch(output, self._setup.block_size, self._setup.placement.device)
            model.forward(batch.token_ids, batch.positions, cache.attention.begin(batch.metadata))


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):  # a stop is the engine's to make: what runs may finish
        signal.signal(number, signal.SIG_IGN)
    engine: Connection = Connection(int(argv[1]))
    messages: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
    setup: Setup = engine.recv()
    threading.Thread(target=_receive, args=(engine, messages.put), daemon=True).start()
    try:
        worker = Worker(setup)
        engine.send(Loaded())
        while True:
            worker.take(messages.get())
    except Exception as error:
        logging.getLogger(__name__).exception("rank %d of %d ends", setup.rank, setup.size)
        engine.send(Failed(_failure(error)))
        return 1


def _receive(engine: Connection, put: Callable[[ToWorker], None]) -> None:
    """On a thread of its own, so that the engine's end is seen in the middle of a step, too."""
    while True:
        try:
            put(engine.recv())
        except (EOFError, OSError):
            os._exit(0)


def _failure(error: Exception) -> Failure:
    if isinstance(error, PagemillError):
        return error.failure
    return Failure(FailureReason.ENGINE_FAILED, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    ended = main(sys.argv)
    logging.shutdown()
    os._exit(ended)  # the threads of a broken sum would be waited for
