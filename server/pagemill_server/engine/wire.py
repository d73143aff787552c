"""How the messages of the boundary cross between two processes: what each is, and how it becomes bytes and comes back.

Both ends are ours and of the same version, so bytes are a pickle; the few dataclasses that come in every step are written as their
fields alone, which takes a third of the time. Used by `process` and `child`.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from pagemill.failures import Failure
from pagemill.model_files import ModelFiles
from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.front import Command
from pagemill_server.engine.request import (
    AbortRequest,
    AddRequest,
    EngineStats,
    RequestOutput,
    SampledToken,
    SamplingParams,
    TokenLogprob,
)
from pagemill_server.engine.snapshot import Snapshot
from pagemill_server.lifecycle import Capacity
from pagemill_server.memory import StartMemory
from pagemill_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Job:
    """Front end → engine, as its first: what to load."""

    settings: Settings
    files: ModelFiles


@dataclass(frozen=True, slots=True)
class Entered:
    """Engine → front end, while it loads: a phase of `lifecycle.Phase`."""

    phase: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Engine → front end, while it loads: bytes of weights."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """Engine → front end: it takes commands from here on."""

    limits: EngineLimits
    config: SchedulerConfig
    stats: EngineStats
    snapshot: Snapshot
    memory: StartMemory
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine → front end, as its last: why it could not start."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Published:
    """Engine → front end, after every turn."""

    stats: EngineStats
    outputs: tuple[RequestOutput, ...]
    taken: int  # commands that it has taken, all in all
    steps: tuple[int, ...]  # tokens of each step that ran since the last one of these


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """Engine → front end: a change could not be made, this is in force."""

    config: SchedulerConfig


@dataclass(frozen=True, slots=True)
class Ended:
    """Engine → front end, as its last. `dead` is None where it was told to stop."""

    dead: str | None
    snapshot: Snapshot | None


ToFront = Entered | Progress | Started | Failed | Published | Snapshot | KeptConfig | Ended
ToEngine = Job | Command


def pack(message: object) -> bytes:
    into = io.BytesIO()
    pickler = pickle.Pickler(into, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _DISPATCH
    pickler.dump(message)
    return into.getvalue()


def unpack(data: bytes) -> Any:
    """What `pack` was given."""
    return pickle.loads(data)


def _by_fields(cls: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    values = attrgetter(*(field.name for field in fields(cls)))
    return lambda message: (cls, values(message))


_OFTEN = (EngineStats, Published, AddRequest, SamplingParams)
_DISPATCH: dict[type, Callable[[Any], Any]] = copyreg.dispatch_table | {cls: _by_fields(cls) for cls in _OFTEN}
_DISPATCH[RequestOutput] = lambda output: (RequestOutput, tuple(output))
_DISPATCH[SampledToken] = lambda token: (SampledToken, (token.token_id, token.logprob, token.top, token.rank))
_DISPATCH[TokenLogprob] = lambda token: (TokenLogprob, (token.token_id, token.logprob))
_DISPATCH[AbortRequest] = lambda abort: (AbortRequest, (abort.request_id, abort.index))
