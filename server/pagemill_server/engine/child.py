"""The engine's side of the pipe: `turns` whose commands come from another process and whose outputs go there. See `process`.

Made by the program that loads the model (`engine_program`), when it has one.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.front import Command
from pagemill_server.engine.ports import ModelRunner, StepEngine
from pagemill_server.engine.request import RequestOutput
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.engine.snapshot import Snapshot
from pagemill_server.engine.turns import EngineTurns
from pagemill_server.engine.wire import Ended, KeptConfig, Published, ToFront, pack, unpack


class CountingRunner:
    """A ModelRunner that notes the tokens of each step, for the front end's metrics."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._steps: list[int] = []

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self._steps.append(output.num_tokens)
        return self._runner.run(output)

    def take_steps(self) -> tuple[int, ...]:
        """Of the steps since the last call."""
        steps, self._steps = tuple(self._steps), []
        return steps


class Outbox:
    """The way to the front end, for several threads."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._one_at_a_time = pipe, threading.Lock()

    def put(self, message: ToFront) -> None:
        """Raises OSError when the front end has gone."""
        data = pack(message)
        with self._one_at_a_time:
            self._pipe.send_bytes(data)


def receive(pipe: Connection) -> queue.SimpleQueue[Command]:
    """What comes from now on. When the front end has gone the process ends, in the middle of a step or of loading too."""
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, commands), name="engine-pipe", daemon=True).start()
    return commands


def _receive(pipe: Connection, commands: queue.SimpleQueue[Command]) -> None:
    while True:
        try:
            commands.put(unpack(pipe.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)  # nobody is there for whom to go on


class ChildEngine(EngineTurns):
    """Runs on the thread that calls `run`."""

    def __init__(
        self,
        engine: StepEngine,
        commands: queue.SimpleQueue[Command],
        send: Callable[[ToFront], None],
        counted: CountingRunner,
    ) -> None:
        self._engine, self._commands, self._send, self._counted = engine, commands, send, counted
        self._num_taken = 0

    def run(self) -> None:
        """Until it is told to stop, or the engine dies."""
        self._drive()
        self._send(Ended(self._engine.dead, self._last_snapshot()))

    def _take(self) -> list[Command]:
        commands = super()._take()
        self._num_taken += len(commands)
        return commands

    def _publish(self, outputs: list[RequestOutput]) -> None:
        self._send(Published(self._engine.stats(), tuple(outputs), self._num_taken, self._counted.take_steps()))

    def _publish_snapshot(self, snapshot: Snapshot) -> None:
        self._send(snapshot)

    def _publish_config(self, config: SchedulerConfig) -> None:
        self._send(KeptConfig(config))
