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

from pagemill.failures import PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import hot
from pagemill_server.engine.engine import DIED
from pagemill_server.engine.errors import EngineDead
from pagemill_server.engine.ports import StepEngine
from pagemill_server.engine.queue_bounds import QueueBounds
from pagemill_server.engine.request import (
    AbortRequest,
    AddRequest,
    EngineStats,
    FinishReason,
    RequestOutput,
    SetScheduler,
)
from pagemill_server.engine.snapshot import Snapshot

logger = logging.getLogger(__name__)

SNAPSHOT_LASTS = 0.2  # seconds that those who ask are given the same one: however many look, five are taken a second
SNAPSHOT_PATIENCE = 1.0  # seconds that a step may take until the last one is given


@dataclass(frozen=True, slots=True)
class _Stop:
    """Abort what runs and end the thread."""


@dataclass(frozen=True, slots=True)
class _TakeSnapshot:
    """Answered by `_deliver_snapshot`."""


Command = AddRequest | AbortRequest | SetScheduler | _TakeSnapshot | _Stop


class Mailbox:
    """Where one request's outputs arrive, and which of its sequences have not had their last. The event loop's thread only."""

    def __init__(self, num_sequences: int) -> None:
        self.outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self.open = set(range(num_sequences))

    def put(self, output: RequestOutput) -> None:
        if output.finish_reason is not None:
            self.open.discard(output.index)
        self.outputs.put_nowait(output)


class MailboxStream:
    """The outputs of one request; over when each of its sequences had its last. Leaving early, in any way, aborts the request."""

    def __init__(self, loop: EngineLoop, request_id: str, mailbox: Mailbox) -> None:
        self._loop = loop
        self._request_id = request_id
        self._mailbox = mailbox
        self._unread = len(mailbox.open)  # sequences whose last output has not been read
        self._left = False

    def __aiter__(self) -> MailboxStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._left or not self._unread:
            raise StopAsyncIteration
        try:
            output = await self._mailbox.outputs.get()
        except asyncio.CancelledError:
            self._leave()
            raise
        self._unread -= output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        self._leave()

    def __del__(self) -> None:
        # A stream dropped without aclose must not let the engine run on for nobody.
        self._leave()

    def _leave(self) -> None:
        if self._unread and not self._left:
            self._left = True
            self._loop.leave(self._request_id, self._mailbox)


class EngineLoop:
    """Implements `ports.EngineClient`. The thread lives from construction until `stop`, or until the engine dies.

    One event loop at a time: the one that `submit` is called on.
    """

    def __init__(self, engine: StepEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock  # the engine's: its last_progress is compared with it
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stats = engine.stats()
        self._config = engine.config
        self._bounds = QueueBounds()
        self._snapshot = engine.snapshot()
        self._snapshot_coming: asyncio.Future[None] | None = None
        self._mailboxes: dict[str, Mailbox] = {}  # of requests that have not had their last output
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._busy_since = 0.0
        self._stopping = False
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        # A daemon: a device that never comes back must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # The event loop's side.

    def check_queue(self, num_sequences: int, num_tokens: int) -> None:
        """Raises QueueFull if so much more may not wait: all of it or nothing."""
        self._bounds.check(self._config, self._stats, num_sequences, num_tokens)

    @property
    def config(self) -> SchedulerConfig:
        return self._config

    def configure(self, config: SchedulerConfig) -> None:
        """Change what is hot, between two steps. Raises PagemillError and EngineDead; then nothing has changed."""
        if self.dead is not None or self._stopping:
            raise EngineDead(self.dead or "The engine has stopped.")
        hot.check(config)
        self._config = config
        self._send(SetScheduler(config))

    def submit(self, request: AddRequest) -> MailboxStream:
        """Queue a request, now, not when the iteration begins. Raises RequestRefused, EngineDead."""
        if self.dead is not None or self._stopping:
            raise EngineDead(self.dead or "The engine has stopped.")
        self._engine.check(request)
        assert request.request_id not in self._mailboxes, f"request_id {request.request_id} is in use"
        self._attach()
        mailbox = Mailbox(request.sampling.n)
        self._send(request)
        self._bounds.submitted(request, self._stats)
        self._mailboxes[request.request_id] = mailbox
        return MailboxStream(self, request.request_id, mailbox)

    def _attach(self) -> None:
        """Answers come to the event loop that runs."""
        running = asyncio.get_running_loop()
        if self._event_loop is not running:
            assert self._event_loop is None or self._event_loop.is_closed(), "an engine serves one event loop at a time"
            self._event_loop = running
            self._mailboxes.clear()  # of the loop before: it closed, nobody can read them
            self._snapshot_coming = None

    def abort(self, request_id: str, index: int | None = None) -> None:
        self._send(AbortRequest(request_id, index))

    def abort_all(self) -> None:
        for request_id in self._mailboxes:
            self.abort(request_id)

    def leave(self, request_id: str, mailbox: Mailbox) -> None:
        """Abort a request whose outputs nobody reads any more. Its mailbox stays until the last one: the id is in use so long.

        One that had its last output is left alone, for its id may name another request by now.
        """
        if self._mailboxes.get(request_id) is mailbox:
            self._send(AbortRequest(request_id))

    @property
    def stats(self) -> EngineStats:
        return self._stats

    async def snapshot(self) -> Snapshot:
        if not self._ended.done() and self._clock() - self._snapshot.taken >= SNAPSHOT_LASTS:
            self._attach()
            if self._snapshot_coming is None:
                self._snapshot_coming = asyncio.get_running_loop().create_future()
                self._send(_TakeSnapshot())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._snapshot_coming), SNAPSHOT_PATIENCE)
        return self._snapshot

    def _deliver_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        coming, self._snapshot_coming = self._snapshot_coming, None
        if coming is not None:
            coming.set_result(None)

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
            mailbox.put(output)
            if not mailbox.open:
                del self._mailboxes[output.request_id]

    def _deliver_end(self, error: str | None) -> None:
        """Requests that were on their way in when the thread ended: nobody is left without an answer."""
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        ends = [(request_id, index) for request_id, mailbox in self._mailboxes.items() for index in mailbox.open]
        self._deliver([RequestOutput(request_id, (), reason, error, index=index) for request_id, index in ends])

    # The engine's thread.

    def _run(self) -> None:
        try:
            while self._engine.dead is None and self._turn():
                pass
        except BaseException as error:
            # A bug of ours, or a policy that would end the program: the answers can't be trusted any more, so end loudly.
            logger.critical("the engine died", exc_info=True)
            self._publish(self._engine.fail(f"{type(error).__name__}: {error}"))
        finally:
            self._call_event_loop(self._deliver_end, DIED if self._engine.dead else None)
            self._end_snapshots()
            self._ended.set_result(None)

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
                case _TakeSnapshot():
                    self._call_event_loop(self._deliver_snapshot, self._engine.snapshot())
                case _Stop():
                    self._publish(outputs + self._engine.abort_all())
                    return False
        if self._engine.has_work:
            outputs += self._engine.step()
        self._publish(outputs)
        return True

    def _end_snapshots(self) -> None:
        """Whoever looks at an engine that has ended sees what it left; where its books are not fit to be read, what was before."""
        try:
            self._snapshot = self._engine.snapshot()
        except Exception:
            logger.exception("no last look at the engine")
        self._call_event_loop(self._deliver_snapshot, self._snapshot)

    def _configure(self, config: SchedulerConfig) -> None:
        try:
            self._engine.configure(config)
        except PagemillError as error:  # a policy that could be made a moment ago
            logger.error("the scheduler stays as it was: %s", error)
            self._config = self._engine.config
        else:
            logger.info("the scheduler changed: %s", config)

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
