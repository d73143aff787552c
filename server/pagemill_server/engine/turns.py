"""The engine's side of the message boundary: take the commands that came, make one step, publish; sleep when nothing is to do.

Who inherits it says where published things go: to the event loop of this process (`loop`), or through a pipe (`child`).
"""

from __future__ import annotations

import logging
import queue
from abc import ABC, abstractmethod

from pagemill.failures import PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.front import Command, Stop, TakeSnapshot
from pagemill_server.engine.ports import StepEngine
from pagemill_server.engine.request import AbortRequest, AddRequest, RequestOutput, SetScheduler
from pagemill_server.engine.snapshot import Snapshot

logger = logging.getLogger(__name__)


class EngineTurns(ABC):
    """One thread: the one that calls `_drive`."""

    _engine: StepEngine
    _commands: queue.SimpleQueue[Command]

    @abstractmethod
    def _publish(self, outputs: list[RequestOutput]) -> None:
        """The newest stats and what a turn brought."""

    @abstractmethod
    def _publish_snapshot(self, snapshot: Snapshot) -> None: ...

    @abstractmethod
    def _publish_config(self, config: SchedulerConfig) -> None:
        """What stays in force, where a change failed."""

    def _drive(self) -> None:
        """Until it is told to stop, or the engine dies."""
        try:
            while self._engine.dead is None and self._turn():
                pass
        except BaseException as error:
            # A bug of ours, or a policy that would end the program: the answers can't be trusted any more, so end loudly.
            logger.critical("the engine died", exc_info=True)
            self._publish(self._engine.fail(f"{type(error).__name__}: {error}"))

    def _turn(self) -> bool:
        """Take the commands that came in, make one step, publish. False: asked to stop."""
        outputs: list[RequestOutput] = []
        for command in self._take():
            match command:
                case AddRequest():
                    self._engine.add(command)
                case AbortRequest(request_id, index):
                    outputs += self._engine.abort(request_id, index)
                case SetScheduler(config):
                    self._configure(config)
                case TakeSnapshot():
                    self._publish_snapshot(self._engine.snapshot())
                case Stop():
                    self._publish(outputs + self._engine.abort_all())
                    return False
        if self._engine.has_work:
            outputs += self._engine.step()
        self._publish(outputs)
        return True

    def _last_snapshot(self) -> Snapshot | None:
        """What an engine that has ended left; None where its books are not fit to be read."""
        try:
            return self._engine.snapshot()
        except Exception:
            logger.exception("no last look at the engine")
            return None

    def _configure(self, config: SchedulerConfig) -> None:
        try:
            self._engine.configure(config)
        except PagemillError as error:  # a policy that could be made a moment ago
            logger.error("the scheduler stays as it was: %s", error)
            self._publish_config(self._engine.config)
        else:
            logger.info("the scheduler changed: %s", config)

    def _take(self) -> list[Command]:
        """Every command that is there; sleeps until there is one when there is nothing else to do."""
        commands = [] if self._engine.has_work else [self._commands.get()]
        while not self._commands.empty():  # nobody else takes from it
            commands.append(self._commands.get_nowait())
        return commands
