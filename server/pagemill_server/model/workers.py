"""The processes that compute a model together with this one, as the engine's process sees them; and the runner that leads them.

A worker that ends, or doesn't come to a sum, leaves the others out of step for good: `RunnerLost` says so, the engine ends with it,
and nothing waits longer than `parallel.TIMEOUT`. Started by `load`; the other side is `worker`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import TypeVar

import torch

from pagemill.embedding_config import EmbeddingConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill_server.engine.errors import RunnerLost
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.model.block_copies import BlockCopier
from pagemill_server.model.families import Model
from pagemill_server.model.grammar_masks import GrammarMasks
from pagemill_server.model.interface import AttentionBackend
from pagemill_server.model.messages import Failed, Step, ToEngine, ToWorker
from pagemill_server.model.part import Setup
from pagemill_server.model.runner import Runner

T = TypeVar("T")

_LOOK = 0.1  # seconds between looks at what can't be waited for
_LAST_WORDS = 2.0  # seconds for a worker to end, once a step with it has failed
_PROGRAM = "pagemill_server.model.worker"


class Workers:
    """Ranks 1 and up; none for a model that one process computes."""

    def __init__(self, setup: Setup) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pagemill-") if setup.size > 1 else None
        self.setup = setup if self._folder is None else replace(setup, meeting=Path(self._folder.name) / "meeting")
        self._workers = [_Worker(replace(self.setup, rank=rank)) for rank in range(1, setup.size)]

    def wait_until_loaded(self) -> None:
        """Raises PagemillError with what a worker says, or how it ended."""
        for worker in self._workers:
            while (answer := worker.answer(_LOOK)) is None:
                pass
            if isinstance(answer, Failed):
                failure = answer.failure
                raise PagemillError(failure.reason, failure.message, failure.suggestion)

    def send(self, message: ToWorker) -> None:
        """To all. Raises RunnerLost."""
        for worker in self._workers:
            worker.send(message)

    def trouble(self) -> str | None:
        """Which of them has ended, and how; None while all are there."""
        return next((trouble for worker in self._workers if (trouble := worker.trouble()) is not None), None)

    def lost(self, error: Exception) -> RunnerLost:
        """What a failed step means: the worker that caused it is named, if it ends within a moment."""
        deadline = time.monotonic() + _LAST_WORDS
        while (trouble := self.trouble()) is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
        return RunnerLost(trouble or f"a step failed, and the processes are out of step: {error}")

    def close(self) -> None:
        """End them. A second call does nothing."""
        for worker in self._workers:
            worker.close()
        if self._folder is not None:
            self._folder.cleanup()


class _Worker:
    """One process and the socket to it."""

    def __init__(self, setup: Setup) -> None:
        self._name = f"rank {setup.rank} of {setup.size}"
        self._socket, theirs = Pipe()
        # A fresh interpreter, not a fork: this process has threads, and the program that it runs may not expect to run twice.
        self._process = subprocess.Popen(
            [sys.executable, "-m", _PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()
        with suppress(OSError):  # it has ended already: `answer` says how
            self._socket.send(setup)

    def answer(self, seconds: float) -> ToEngine | None:
        """What it says within that time. Raises PagemillError when it has ended without a word."""
        if (said := self._said(seconds)) is not None:
            return said
        if (trouble := self.trouble()) is not None:
            raise PagemillError(FailureReason.ENGINE_FAILED, trouble)
        return None

    def send(self, message: ToWorker) -> None:
        try:
            self._socket.send(message)
        except OSError as error:
            raise RunnerLost(self.trouble() or f"{self._name} is not there: {error}") from error

    def trouble(self) -> str | None:
        if (code := self._process.poll()) is None:
            return None
        said = self._said(0)
        if isinstance(said, Failed):
            return f"{self._name} failed: {said.failure.message}"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{self._name} (process {self._process.pid}) ended with {how}"

    def _said(self, seconds: float) -> ToEngine | None:
        with suppress(EOFError, OSError):
            if self._socket.poll(seconds):
                said: ToEngine = self._socket.recv()
                return said
        return None

    def close(self) -> None:
        self._socket.close()  # it ends when it sees that
        try:
            self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ParallelRunner(Runner):
    """A Runner whose steps the workers compute with it. What it samples, it samples alone."""

    def __init__(
        self,
        workers: Workers,
        model: Model,
        attention: AttentionBackend,
        block_size: int,
        device: torch.device,
        copier: BlockCopier | None,
        embedding: EmbeddingConfig,
        grammar_masks: GrammarMasks | None,
    ) -> None:
        super().__init__(model, attention, block_size, device, copier, embedding, grammar_masks)
        self._workers = workers
        self._fetched: frozenset[int] = frozenset()  # by the newest step: the workers are told with the next

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        """Raises RunnerLost, whatever went wrong: the others may be anywhere in the step."""
        result = self._together(output, super().run)
        self._fetched = result.fetched
        return result

    def logits(self, output: SchedulerOutput) -> torch.Tensor:
        return self._together(output, super().logits)

    def trouble(self) -> str | None:
        return self._workers.trouble()

    def close(self) -> None:
        super().close()
        self._workers.close()

    def _together(self, output: SchedulerOutput, compute: Callable[[SchedulerOutput], T]) -> T:
        self._workers.send(Step(output, self._fetched))
        try:
            return compute(output)
        except Exception as error:
            raise self._workers.lost(error) from error
