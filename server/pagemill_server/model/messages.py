"""What the engine's process and its workers tell each other, over a socket of their own. Frozen, pickled by us and for us only."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.failures import Failure
from pagemill_server.engine.schedule import SchedulerOutput


@dataclass(frozen=True, slots=True)
class Loaded:
    """Worker → engine: its part is there."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker → engine, its last word."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Meet:
    """Engine → worker: everybody's part is there."""


@dataclass(frozen=True, slots=True)
class Warm:
    """Engine → worker: a first step, over a cache that is thrown away (`profile`)."""

    output: SchedulerOutput


@dataclass(frozen=True, slots=True)
class Begin:
    """Engine → worker: what the cache holds from now on, blocks of each tier."""

    num_blocks: int
    num_host_blocks: int


@dataclass(frozen=True, slots=True)
class Step:
    """Engine → worker: compute this.

    `fetched` are the tickets that the engine was told have ended: what they brought may be used, or given away, by this step.
    """

    output: SchedulerOutput
    fetched: frozenset[int]


ToWorker = Meet | Warm | Begin | Step
ToEngine = Loaded | Failed
