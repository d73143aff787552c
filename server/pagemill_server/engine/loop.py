"""The engine in a thread of its own, and the message boundary around it: frozen dataclasses cross, no object is shared.

Commands go in through a thread-safe queue; outputs come out to asyncio queues, one wake-up of the event loop a step. Idle, the
thread sleeps on the queue. The API holds it as `ports.EngineClient`. Knows nothing of what a step does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pagemill_server.engine.engine import DIED, Engine
from pagemill_server.engine.errors import EngineDead
from pagemill_server.engine.request import AbortRequest, AddRequest, EngineStats, FinishReason, RequestOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Stop:
    """Abort what runs and end the thread."""


Command = AddRequest | AbortRequest | _Stop
Mailbox = asyncio.Queue[RequestOutput]


class MailboxStream:
    """The outputs of one request; over after the one with a finish_reason. Leaving it early, in any way, aborts the request."""

    def __init__(self, loop: EngineLoop, request_id: str, mailbox: Mailbox) -> None:
        self._loop = loop
        self._request_id = request_id
        self._mailbox = mailbox
        self._over = False

    def __aiter__(self) -> MailboxStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._over:
            raise StopAsyncIteration
        try:
            output = await self._mailbox.get()
        except asyncio.CancelledError:
            self._leave()
            raise
        self._over = output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        self._leave()

    def __del__(self) -> None:
        # A stream dropped without aclose must not let the engine run on for nobody.
        self._leave()

    def _leave(self) -> None:
        if not self._over:
            self._over = True
            self._loop.leave(self._request_id, self._mailbox)


class EngineLoop:
    """Implements `ports.EngineClient`. The thread lives from construction until `stop`, or until the engine dies.

    One event loop at a time: the one that `submit` is called on.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock  # the engine's: its last_progress is compared with it
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stats = engine.stats()
        self._mailboxes: dict[str, Mailbox] = {}  # of requests that have not had their last output
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._busy_since = 0.0
        self._stopping = False
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon: a device that never comes back must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # The event loop's side.

    def submit(self, request: AddRequest) -> MailboxStream:
        """Queue a request, now, not when the iteration begins. Raises RequestRefused, EngineDead."""
        if self.dead is not None or self._stopping:
            raise EngineDead(self.dead or "The engine has stopped.")
        self._engine.check(request)
        assert request.request_id not in self._mailboxes, f"request_id {request.request_id} is in use"
        running = asyncio.get_running_loop()
        if self._event_loop is not running:
            assert self._event_loop is None or self._event_loop.is_closed(), "an engine serves one event loop at a time"
            self._event_loop = running
            self._mailboxes.clear()  # of the loop before: it closed, nobody can read them
        mailbox: Mailbox = asyncio.Queue()
        self._send(request)
        self._mailboxes[request.request_id] = mailbox
        return MailboxStream(self, request.request_id, mailbox)

    def abort(self, request_id: str) -> None:
        self._send(AbortRequest(request_id))

    def leave(self, request_id: str, mailbox: Mailbox) -> None:
        """Abort a request whose outputs nobody reads any more. Its mailbox stays until the last one: the id is in use so long.

        One that had its last output is left alone, for its id may name another request by now.
        """
        if self._mailboxes.get(request_id) is mailbox:
            self._send(AbortRequest(request_id))

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def dead(self) -> str | None:
        return self._engine.dead

    def stalled_for(self) -> float:
        if not self._busy:
            return 0.0
        return max(0.0, self._clock() - max(self._stats.last_progress, self._busy_since))

    async def stop(self) -> None:
        """Abort what still runs (each stream ends with ABORT) and end the thread, once its present step is done."""
        self._stopping = True
        self._send(_Stop())
        await asyncio.shield(asyncio.wrap_future(self._ended))

    @property
    def _busy(self) -> bool:
        stats = self._stats
        return bool(self._mailboxes or stats.num_running or stats.num_waiting) or not self._commands.empty()

    def _send(self, command: Command) -> None:
        if not self._busy:
            self._busy_since = self._clock()
        self._commands.put(command)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is None:
                continue
            mailbox.put_nowait(output)
            if output.finish_reason is not None:
                del self._mailboxes[output.request_id]

    def _deliver_end(self, error: str | None) -> None:
        """Requests that were on their way in when the thread ended: nobody is left without an answer."""
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        self._deliver([RequestOutput(request_id, (), reason, error) for request_id in self._mailboxes])

    # The engine's thread.

    def _run(self) -> None:
        try:
            while self._engine.dead is None and self._turn():
                pass
        except Exception as error:
            # A bug of ours: the answers can't be trusted any more, so end loudly instead of serving on.
            logger.critical("the engine died", exc_info=True)
            self._publish(self._engine.fail(f"{type(error).__name__}: {error}"))
        finally:
            self._call_event_loop(self._deliver_end, DIED if self._engine.dead else None)
            self._ended.set_result(None)

    def _turn(self) -> bool:
        """Take the commands that came in, make one step, publish. False: asked to stop."""
        outputs: list[RequestOutput] = []
        for command in self._take():
            match command:
                case AddRequest():
                    self._engine.add(command)
                case AbortRequest(request_id):
                    outputs += self._engine.abort(request_id)
                case _Stop():
                    self._publish(outputs + self._engine.abort_all())
                    return False
        if self._engine.has_work:
            outputs += self._engine.step()
        self._publish(outputs)
        return True

    def _take(self) -> list[Command]:
        """Every command that is there; sleeps until there is one when there is nothing else to do."""
        commands = [] if self._engine.has_work else [self._commands.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                commands.append(self._commands.get_nowait())
        return commands

    def _publish(self, outputs: list[RequestOutput]) -> None:
        """Stats first: who reads them after a last output sees the request gone."""
        self._stats = self._engine.stats()
        if outputs:
            self._call_event_loop(self._deliver, outputs)

    def _call_event_loop(self, function: Callable[..., None], argument: object) -> None:
        if self._event_loop is None:
            return
        with contextlib.suppress(RuntimeError):  # closed: nobody listens
            self._event_loop.call_soon_threadsafe(function, argument)
