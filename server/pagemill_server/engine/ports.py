"""The two seams of the engine, as protocols: what it runs on (`ModelRunner`) and how the front end talks to it (`EngineClient`).

`model/runner.Runner` implements the first, `engine/loop.EngineLoop` the second; tests of either side need not load the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from pagemill_server.engine.request import AddRequest, EngineStats, RequestOutput
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput


class ModelRunner(Protocol):
    """Computes one step. Owns the weights and the KV tensors; called by the engine's thread only."""

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        """Compute the tokens, write their KV through the block tables, sample where asked."""
        ...


class EngineClient(Protocol):
    """The front end's view. Every method is called on the event loop's thread and never blocks it."""

    def submit(self, request: AddRequest) -> AsyncIterator[RequestOutput]:
        """Queue a request; iterate its outputs until one has a finish_reason.

        Closing the iterator early (`aclose`, task cancelled) aborts the request in the engine and frees its blocks.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Ask the engine to end a request; its iterator then yields a last output with FinishReason.ABORT."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The newest published values; right after an abort and when idle."""
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
