"""What is counted from the start of the process. One object, written by `roster` and `commit`, read by `engine.stats`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Each only rises."""

    num_added: int = 0  # sequences
    num_preemptions: int = 0
    prompt_tokens: int = 0  # computed or cached, of each sequence when it has its first token
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens of sequences that ran for the first time
    prefix_cache_hits: int = 0  # of these, not computed
    host_hits: int = 0  # of these, from the host tier
