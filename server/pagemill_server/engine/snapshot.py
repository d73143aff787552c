"""The engine at one moment, for people to look at: whose each block is, and who runs and waits. Never a prompt or an output.

Made by `Engine.snapshot` on the engine's thread, between two steps; `engine/loop` hands it on. So it must cost a step nothing that
can be measured: block tables are the immutable tuples that the cache has anyway, free blocks are what nobody names, and of those
that wait the first ones are told. `api/blocks` makes JSON of it, elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.request import EngineStats
from pagemill_server.engine.roster import Roster
from pagemill_server.engine.sequence import Sequence

LISTED = 100  # of the waiting


class Place(StrEnum):
    """Where a sequence stands. FETCHING runs, but for its blocks that are on their way from the host tier."""

    RUNNING = "running"
    FETCHING = "fetching"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What may be seen of a sequence. Counts are tokens."""

    seq_id: int  # counts up with every sequence of this process
    request_id: str  # ours, never the client's own
    index: int  # which of its request's n
    place: Place
    client: str  # the key's name, the header or `user`
    priority: int
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, when it first ran
    num_computed_tokens: int  # of prompt and output, now
    num_output_tokens: int
    max_tokens: int  # of output; 0 for an embedding
    num_preemptions: int
    arrival: float  # time.monotonic() seconds, as the next
    first_scheduled: float | None
    blocks: tuple[int, ...] = ()  # in the order of its tokens; a block in several tables is shared


@dataclass(frozen=True, slots=True)
class BlockView:
    """Whose the device blocks are that no sequence holds; all that is in no table and not named here is free."""

    block_size: int  # tokens
    num_blocks: int
    num_free: int
    num_held: int
    cached: tuple[int, ...]  # what would be evicted first comes first
    parked: tuple[int, ...]
    num_host_blocks: int
    num_host_used: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Engine → front end, when asked."""

    taken: float  # time.monotonic() seconds
    stats: EngineStats
    blocks: BlockView | None  # None: an engine without a cache
    running: tuple[SequenceView, ...] = ()  # in order of admission
    waiting: tuple[SequenceView, ...] = ()  # the first LISTED, the next to run first; `stats` says how many there are


def of_engine(roster: Roster, kv_cache: KVCache, stats: EngineStats, now: float) -> Snapshot:
    """O(running + cached blocks), the latter a copy without a loop of ours."""
    running = tuple(
        _view(
            sequence,
            Place.FETCHING if seq_id in roster.fetching else Place.RUNNING,
            kv_cache.held_by(sequence),
        )
        for seq_id, sequence in roster.running.items()
    )
    blocks = BlockView(
        block_size=kv_cache.block_size,
        num_blocks=kv_cache.num_blocks,
        num_free=kv_cache.num_free,
        num_held=kv_cache.num_held,
        cached=kv_cache.cached,
        parked=kv_cache.parked,
        num_host_blocks=kv_cache.num_host_blocks,
        num_host_used=kv_cache.num_host_used,
    )
    return Snapshot(now, stats, blocks, running, waiting_views(roster.waiting.first(LISTED)))


def waiting_views(sequences: Iterable[Sequence]) -> tuple[SequenceView, ...]:
    return tuple(_view(sequence, Place.WAITING) for sequence in sequences)


def _view(sequence: Sequence, place: Place, blocks: tuple[int, ...] = ()) -> SequenceView:
    request = sequence.request
    return SequenceView(
        seq_id=sequence.seq_id,
        request_id=request.request_id,
        index=sequence.index,
        place=place,
        client=request.client,
        priority=request.priority,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_output_tokens=sequence.num_output_tokens,
        max_tokens=0 if request.pooling else request.sampling.max_tokens,
        num_preemptions=sequence.num_preemptions,
        arrival=request.arrival,
        first_scheduled=sequence.first_scheduled,
        blocks=blocks,
    )
