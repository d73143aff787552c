"""What `speed` measures, ours or a peer's: a process that was started for it and answers prompts, or makes vectors of sentences.

A `Peer` says how to start one; it runs while the context manager that `Peer.run` returns is open. Raises PeerError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.measure import Sample
from benchmarks.workloads import Prompt, Workload

Replay = Callable[[Workload, Sequence[Prompt]], Awaitable[list[Sample]]]
# Sentences, how many a request, how many requests at a time: seconds until all have their vectors.
Embed = Callable[[Sequence[str], int, int], Awaitable[float]]


class PeerError(Exception):
    """It did not start, or ended; the message says why and where its log is."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A running process. One of `replay` and `embed` is there."""

    name: str
    pid: int
    ready_s: float  # from the start of the process until it says that it is ready
    first_token_s: float  # until it has answered a first request for one token; of embeddings: for one vector
    replay: Replay | None = None
    embed: Embed | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """`missing()`: None where it is installed, else one line that says how it would be. `run(model)` starts it; `model` as
    `pagemill serve` takes it."""

    name: str
    missing: Callable[[], str | None]
    run: Callable[[str], AbstractContextManager[Contestant]]
    embeds: bool = False
