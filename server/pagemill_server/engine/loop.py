"""The engine in a thread of its own, and the message boundary around it: frozen dataclasses cross, no object is shared.

Commands go in through a thread-safe queue; outputs come out to asyncio queues, one wake-up of the event loop a step. Idle, the
thread sleeps on the queue. The event loop's side is `front`, the engine's is `turns`; here they meet. `process` is the same with
a process in the thread's place.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.engine import DIED
from pagemill_server.engine.front import Command, EngineFront, Stop
from pagemill_server.engine.ports import StepEngine
from pagemill_server.engine.request import AddRequest, RequestOutput
from pagemill_server.engine.snapshot import Snapshot
from pagemill_server.engine.turns import EngineTurns


class EngineLoop(EngineFront, EngineTurns):
    """Implements `ports.EngineClient`. The thread lives from construction until `stop`, or until the engine dies."""

    def __init__(self, engine: StepEngine, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(engine.stats(), engine.config, engine.snapshot(), clock)
        self._engine = engine
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon: a device that never comes back must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # The event loop's side.

    @property
    def dead(self) -> str | None:
        return self._engine.dead

    async def stop(self) -> None:
        """Abort what still runs (each stream ends with ABORT) and end the thread, once its present step is done."""
        self._stopping = True
        self._send(Stop())
        await asyncio.shield(asyncio.wrap_future(self._ended))

    @property
    def _unread(self) -> bool:
        return not self._commands.empty()

    @property
    def _over(self) -> bool:
        return self._ended.done()

    def _check(self, request: AddRequest) -> None:
        self._engine.check(request)

    def _put(self, command: Command) -> None:
        self._commands.put(command)

    # The engine's thread.

    def _run(self) -> None:
        try:
            self._drive()
        finally:
            self._call_event_loop(self._deliver_end, DIED if self._engine.dead else None)
            # Whoever looks at an engine that has ended sees what it left, or what was before.
            self._snapshot = self._last_snapshot() or self._snapshot
            self._call_event_loop(self._deliver_snapshot, self._snapshot)
            self._ended.set_result(None)

    def _publish(self, outputs: list[RequestOutput]) -> None:
        """Stats first: who reads them after a last output sees the request gone."""
        self._stats = self._engine.stats()
        if outputs:
            self._call_event_loop(self._deliver, outputs)

    def _publish_snapshot(self, snapshot: Snapshot) -> None:
        self._call_event_loop(self._deliver_snapshot, snapshot)

    def _publish_config(self, config: SchedulerConfig) -> None:
        self._config = config
