"""One stream of tokens being generated, and how much of it has its KV in the cache.

There is no state field: a sequence waits, runs or is gone by which of the roster's collections holds it, and its blocks belong to
`kv_cache`. Made by `engine`, advanced by `commit`, taken back to the start by a preemption.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from pagemill_server.engine.request import AddRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable, owned by the engine's thread. `num_computed_tokens` catches up with `num_tokens`, step by step."""

    seq_id: int  # counts up: the order of arrival at the engine
    request: AddRequest
    seed: int  # of the counter-based generator
    index: int = 0  # which of its request's n
    token_ids: list[int] = field(init=False)  # prompt, then output
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0  # tokens whose KV is in the cache, or will be when the fetch under way is done
    num_cached_tokens: int = 0  # prompt tokens that needn't be computed when it first ran: cached, or its leader's
    num_preemptions: int = 0
    first_scheduled: float | None = None  # time.monotonic() seconds
    block_hashes: list[bytes] = field(
        default_factory=list
    )  # kv_cache's own: of its full blocks, in order, as far as known
    num_tokens_when_admitted: int = 0  # more tokens than that: it has had one since
    blocked_since: float | None = None  # when it was first found at the queue's head without its blocks
    num_charged_tokens: int = 0  # prompt tokens that were cached when it first ran, or computed since, once or more
    num_prompt_logprobs: int = 0  # of its prompt, handed on already
    has_output: bool = False  # an output of it was handed on

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_to_hold(self) -> int:
        """Tokens that its blocks must have room for when it is admitted: those it has, and one that is sampled."""
        return len(self.token_ids) + (not self.request.pooling)


def draw_seed(engine_seed: int, counter: int) -> int:
    """A 63-bit seed for a request that names none: the same server, asked the same in the same order, answers the same."""
    digest = hashlib.sha256(f"{engine_seed}:{counter}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
