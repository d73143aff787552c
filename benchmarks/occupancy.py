"""How full the KV memory is while an engine runs, averaged over time. Looks only; used by `paged_vs_contiguous`."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workload_file import WorkloadError
from pagemill_server.engine.engine import Engine


@dataclass(slots=True)
class Occupancy:
    """Sums over time in which something waited: then memory or places are the bound, not the load. Tokens and slots x seconds."""

    seconds: float = 0.0
    sequences: float = 0.0
    held: float = 0.0  # slots of the blocks that sequences hold
    known: float = 0.0  # tokens of those sequences, prompts not computed yet included
    computed: float = 0.0  # tokens whose keys and values are there
    total: float = 0.0  # slots of the pool
    most_sequences: int = 0

    def look(self, engine: Engine, seconds: float) -> None:
        """After a step that took so long."""
        roster, cache = engine.scheduler.roster, engine.kv_cache
        self.most_sequences = max(self.most_sequences, len(roster.running))
        if not roster.num_waiting:
            return
        running = roster.running.values()
        self.seconds += seconds
        self.sequences += seconds * len(running)
        self.held += seconds * cache.num_held * cache.block_size
        self.known += seconds * sum([sequence.num_tokens for sequence in running])
        self.computed += seconds * sum([sequence.num_computed_tokens for sequence in running])
        self.total += seconds * cache.capacity

    def figures(self) -> Filling:
        """Averages; raises WorkloadError when nothing ever waited."""
        if not self.seconds:
            raise WorkloadError("nothing ever waited, so memory was no bound: more requests or less memory is needed")
        return Filling(
            sequences=self.sequences / self.seconds,
            most_sequences=self.most_sequences,
            wasted=1 - self.known / self.held,
            without_token=1 - self.computed / self.held,
            used=self.computed / self.total,
        )


@dataclass(frozen=True, slots=True)
class Filling:
    """Averages over time."""

    sequences: float  # at once
    most_sequences: int
    wasted: float  # share of the held slots that no known token will fill
    without_token: float  # share of the held slots that are empty, prompts under way included
    used: float  # share of the whole pool that holds a token
