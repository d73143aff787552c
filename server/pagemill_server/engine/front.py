"""The event loop's side of the message boundary: one request's outputs, the queue's bounds, snapshots, health. No engine here.

Who inherits it takes the commands elsewhere: to a thread of this process (`loop`) or to another process (`process`). The API holds
it as `ports.EngineClient`. Knows nothing of what a step does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import hot
from pagemill_server.engine.errors import EngineDead
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

SNAPSHOT_LASTS = 0.2  # seconds that those who ask are given the same one: however many look, five are taken a second
SNAPSHOT_PATIENCE = 1.0  # seconds that a step may take until the last one is given
AT_A_TIME = 32  # outputs that streams are given before the event loop turns to others


@dataclass(frozen=True, slots=True)
class Stop:
    """Abort what runs and end."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Answered with a `Snapshot`."""


Command = AddRequest | AbortRequest | SetScheduler | TakeSnapshot | Stop


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

    def __init__(self, front: EngineFront, request_id: str, mailbox: Mailbox) -> None:
        self._front = front
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
            self._front.leave(self._request_id, self._mailbox)


class EngineFront(ABC):
    """Implements `ports.EngineClient`, all but `stop`. One event loop at a time: the one that `submit` is called on."""

    def __init__(
        self,
        stats: EngineStats,
        config: SchedulerConfig,
        snapshot: Snapshot,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock  # the engine's: its last_progress is compared with it
        self._stats = stats
        self._config = config
        self._bounds = QueueBounds()
        self._snapshot = snapshot
        self._snapshot_coming: asyncio.Future[None] | None = None
        self._mailboxes: dict[str, Mailbox] = {}  # of requests that have not had their last output
        self._due: deque[RequestOutput] = deque()  # outputs that came and were not handed over yet
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._busy_since = 0.0
        self._stopping = False

    @property
    @abstractmethod
    def dead(self) -> str | None:
        """Why the engine ended, or None while it lives."""

    @property
    @abstractmethod
    def _unread(self) -> bool:
        """Whether commands are on their way that the engine has not taken."""

    @property
    @abstractmethod
    def _over(self) -> bool:
        """Whether the engine has ended, by failure or by `stop`."""

    @abstractmethod
    def _check(self, request: AddRequest) -> None:
        """Raise RequestRefused for what can never be served."""

    @abstractmethod
    def _put(self, command: Command) -> None:
        """Send it to the engine; doesn't block."""

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
        self._check(request)
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
            self._due.clear()
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
        if not self._over and self._clock() - self._snapshot.taken >= SNAPSHOT_LASTS:
            self._attach()
            if self._snapshot_coming is None:
                self._snapshot_coming = asyncio.get_running_loop().create_future()
                self._send(TakeSnapshot())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._snapshot_coming), SNAPSHOT_PATIENCE)
        return self._snapshot

    def _deliver_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        coming, self._snapshot_coming = self._snapshot_coming, None
        if coming is not None:
            coming.set_result(None)

    def stalled_for(self) -> float:
        if not self._busy:
            return 0.0
        return max(0.0, self._clock() - max(self._stats.last_progress, self._busy_since))

    @property
    def _busy(self) -> bool:
        stats = self._stats
        return bool(self._mailboxes or stats.num_running or stats.num_waiting) or self._unread

    def _send(self, command: Command) -> None:
        if not self._busy:
            self._busy_since = self._clock()
        self._put(command)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """A few at a time, between which the loop turns to whatever else is due: what a step brings for hundreds of streams
        takes longer to write than anybody may wait."""
        begins = not self._due
        self._due.extend(outputs)
        if begins:
            self._deliver_some()

    def _deliver_some(self) -> None:
        for _ in range(min(AT_A_TIME, len(self._due))):
            self._hand_over(self._due.popleft())
        if self._due and self._event_loop is not None:
            self._event_loop.call_soon(self._deliver_some)

    def _hand_over(self, output: RequestOutput) -> None:
        mailbox = self._mailboxes.get(output.request_id)
        if mailbox is None:
            return
        mailbox.put(output)
        if not mailbox.open:
            del self._mailboxes[output.request_id]

    def _deliver_end(self, error: str | None) -> None:
        """Requests that were on their way in when the thread ended: nobody is left without an answer."""
        while self._due:
            self._hand_over(self._due.popleft())
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        ends = [(request_id, index) for request_id, mailbox in self._mailboxes.items() for index in mailbox.open]
        for request_id, index in ends:
            self._hand_over(RequestOutput(request_id, (), reason, error, index=index))

    def _call_event_loop(self, function: Callable[..., None], argument: object) -> None:
        if self._event_loop is None:
            return
        with contextlib.suppress(RuntimeError):  # closed: nobody listens
            self._event_loop.call_soon_threadsafe(function, argument)
