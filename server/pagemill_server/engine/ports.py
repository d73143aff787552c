"""The seams of the engine, as protocols: what it runs on (`ModelRunner`), what makes the steps (`StepEngine`) and how the front
end talks to it (`EngineClient`).

`model/runner` and `model/encoder` implement the first, `engine/engine` and `engine/encoder` the second, `engine/loop` the third;
tests of any side need not load the others.
"""

from __future__ import annotations

from typing import Protocol

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.request import AddRequest, EngineStats, RequestOutput
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.engine.snapshot import Snapshot


class ModelRunner(Protocol):
    """Computes one step. Owns the weights and the KV tensors; called by the engine's thread only."""

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        """Compute the tokens, write their KV through the block tables, sample where asked."""
        ...


class StepEngine(Protocol):
    """Requests in, one step at a time, outputs out. Synchronous; one thread, but for `check`, `dead` and `limits`."""

    limits: EngineLimits
    dead: str | None  # why it ended, or None while it lives

    @property
    def has_work(self) -> bool: ...

    def check(self, request: AddRequest) -> None:
        """Raise RequestRefused for what can never be served."""
        ...

    def add(self, request: AddRequest) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> list[RequestOutput]: ...

    def abort_all(self) -> list[RequestOutput]: ...

    def step(self) -> list[RequestOutput]:
        """One pass of the model. Raises only what is a bug."""
        ...

    def fail(self, reason: str) -> list[RequestOutput]:
        """End for good: every request gets an error."""
        ...

    @property
    def config(self) -> SchedulerConfig:
        """What is in force, or will be from the next step on: the newest that was configured."""
        ...

    def configure(self, config: SchedulerConfig) -> None:
        """Change what is hot, between two steps. Raises PagemillError, and then nothing has changed."""
        ...

    def stats(self) -> EngineStats: ...

    def snapshot(self) -> Snapshot:
        """For people to look at; must cost next to nothing."""
        ...


class OutputStream(Protocol):
    """One request's outputs, an async iterator that `contextlib.aclosing` can hold; over when each sequence had its last.

    Leaving early (`aclose`, the task cancelled, the stream dropped) aborts the request in the engine and frees its blocks.
    """

    def __aiter__(self) -> OutputStream: ...

    async def __anext__(self) -> RequestOutput: ...

    async def aclose(self) -> None: ...


class EngineClient(Protocol):
    """The front end's view. Every method is called on the event loop's thread and never blocks it."""

    def check_queue(self, num_sequences: int, num_tokens: int) -> None:
        """Raise `engine.errors.QueueFull` (a 429 with its `retry_after`) if so much more may not wait: all of it or nothing.

        `num_tokens` prompt tokens; 0 asks about the sequences only, before a prompt is tokenised.
        """
        ...

    @property
    def config(self) -> SchedulerConfig:
        """What is in force, or will be from the next step on: the newest that was configured."""
        ...

    def configure(self, config: SchedulerConfig) -> None:
        """Change what is hot, between two steps; nothing that waits or runs is lost.

        Raises PagemillError (InvalidConfiguration) for what can't be, and EngineDead; then nothing has changed.
        """
        ...

    def submit(self, request: AddRequest) -> OutputStream:
        """Queue a request at once; iterate its outputs until each of its sequences has a finish_reason.

        Raises `engine.errors.RequestRefused` for what can never be served (a 400) and `EngineDead` (a 503).
        """
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ask the engine to end a request, or one sequence of it; its iterator then yields a last output with ABORT."""
        ...

    def abort_all(self) -> None:
        """The same for every request that it has; others may come afterwards."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The newest published values; right after an abort and when idle."""
        ...

    async def snapshot(self) -> Snapshot:
        """The engine as it stood between two steps, a moment ago. Who asks at once, or soon after, shares one.

        The last one there is where the engine is in a long step, or has ended: `taken` says how old it is.
        """
        ...

    def stalled_for(self) -> float:
        """Seconds without progress while work waits; 0 when idle or moving. /health turns 503 beyond a bound."""
        ...

    @property
    def dead(self) -> str | None:
        """Why the engine ended, or None while it lives."""
        ...

    async def stop(self) -> None:
        """Abort what still runs and end the engine's thread."""
        ...
