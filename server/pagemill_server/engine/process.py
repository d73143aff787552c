"""The engine in a process of its own: what `loop` is for a thread. On a GPU, where an abort of CUDA ends the process that it is in.

The front end goes on then: its streams end with an error event, the reason goes where the operator reads it. Commands and outputs
are the same frozen dataclasses, through a pipe (`wire`); one thread sends, one receives, and the event loop waits for neither. The
other side is `child`; which program that is, `load` is told, since nothing here knows a model.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import EngineLimits
from pagemill_server.engine import feasible
from pagemill_server.engine.engine import DIED
from pagemill_server.engine.front import Command, EngineFront, Stop
from pagemill_server.engine.request import AddRequest
from pagemill_server.engine.snapshot import Snapshot
from pagemill_server.engine.wire import (
    Ended,
    Failed,
    Job,
    KeptConfig,
    Published,
    Started,
    ToEngine,
    ToFront,
    pack,
    unpack,
)

_LAST_WORDS = 5.0  # seconds for the process to end once it was told to, or its pipe was closed


class EngineChild:
    """The process, and the pipe to it."""

    def __init__(self, program: Sequence[str]) -> None:
        """`program` is what follows `python`; the number of its end of the pipe comes last."""
        self._pipe, theirs = Pipe()
        # A fresh interpreter, not a fork: this process has threads, and CUDA does not live through a fork.
        self._process = subprocess.Popen(
            [sys.executable, *program, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pipe(self) -> Connection:
        return self._pipe

    def send(self, message: ToEngine) -> None:
        """Raises OSError when it is not there any more."""
        self._pipe.send_bytes(pack(message))

    def receive(self) -> ToFront | None:
        """The next message; None when the process has ended."""
        try:
            message: ToFront = unpack(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        return message

    def how_it_ended(self) -> str:
        """A sentence."""
        try:
            code = self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            return f"the engine's process ({self.pid}) says nothing any more"
        if code >= 0:
            return f"the engine's process ({self.pid}) ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = ": the system's memory may have run out" if -code == signal.SIGKILL else ""
        return f"the engine's process ({self.pid}) was ended by {name}{hint}"

    def close(self) -> None:
        """End it. A second call does nothing."""
        self._pipe.close()  # it ends when it sees that
        try:
            self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def load(child: EngineChild, job: Job, told: Callable[[ToFront], None]) -> Started:
    """Hand the child what to load and wait until it has; `told` gets what it says meanwhile.

    Raises PagemillError with what the child says, or how it ended.
    """
    with contextlib.suppress(OSError):  # it has ended already: what it left says how
        child.send(job)
    while (message := child.receive()) is not None:
        if isinstance(message, Started):
            return message
        if isinstance(message, Failed):
            failure = message.failure
            raise PagemillError(failure.reason, failure.message, failure.suggestion)
        told(message)
    raise PagemillError(FailureReason.ENGINE_FAILED, f"{child.how_it_ended()} while it loaded the model")


class EngineProcess(EngineFront):
    """Implements `ports.EngineClient` for a child that has started. `stepped` is told the tokens of each step."""

    def __init__(
        self, child: EngineChild, started: Started, stepped: Callable[[int], None] = lambda tokens: None
    ) -> None:
        super().__init__(started.stats, started.config, started.snapshot)
        self._child = child
        self._limits: EngineLimits = started.limits
        self._stepped = stepped
        self._dead: str | None = None
        self._sent = self._taken = 0  # commands
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        for target in (self._send_all, self._receive_all):
            threading.Thread(target=target, name="engine-pipe", daemon=True).start()

    # The event loop's side.

    @property
    def dead(self) -> str | None:
        return self._dead

    async def stop(self) -> None:
        """Abort what still runs (each stream ends with ABORT) and end the process, once its present step is done."""
        self._stopping = True
        self._send(Stop())
        await asyncio.shield(asyncio.wrap_future(self._ended))

    @property
    def _unread(self) -> bool:
        return self._sent > self._taken

    @property
    def _over(self) -> bool:
        return self._ended.done()

    def _check(self, request: AddRequest) -> None:
        feasible.check(request, self._limits)

    def _put(self, command: Command) -> None:
        self._sent += 1
        self._commands.put(command)

    # The pipe's two threads: a pipe that is full makes who writes wait.

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):  # the receiving thread finds out why
            while (command := self._commands.get()) is not None:
                self._child.send(command)

    def _receive_all(self) -> None:
        end: Ended | None = None
        while end is None and (message := self._child.receive()) is not None:
            end = self._take(message)
        self._end(end or Ended(self._child.how_it_ended(), None))

    def _take(self, message: ToFront) -> Ended | None:
        match message:
            case Published(stats, outputs, taken, steps):
                self._stats, self._taken = (
                    stats,
                    taken,
                )  # first: who reads them after a last output sees the request gone
                for tokens in steps:
                    self._stepped(tokens)
                if outputs:
                    self._call_event_loop(self._deliver, list(outputs))
            case Snapshot():
                self._call_event_loop(self._deliver_snapshot, message)
            case KeptConfig(config):
                self._config = config
            case Ended():
                return message
        return None

    def _end(self, end: Ended) -> None:
        self._dead = end.dead
        self._taken = self._sent
        self._commands.put(None)
        self._snapshot = end.snapshot or self._snapshot
        self._call_event_loop(self._deliver_end, DIED if end.dead else None)
        self._call_event_loop(self._deliver_snapshot, self._snapshot)
        self._ended.set_result(None)
