"""A model runner without a model, for the engine's tests: its "KV cache" keeps the token of each slot.

The next token is a hash of the whole context, read back through the block table. So a wrong block, a lost position, a stale
slot or a chunk out of place changes the answer, and `answer` says what it must be without any engine. Its host tier keeps what was
really copied, and a fetch brings what it finds when it ends, not when it began.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, RequestOutput, SampledToken, SamplingParams
from pagemill_server.engine.schedule import Fetch, RunnerOutput, ScheduledSequence, SchedulerOutput
from pagemill_server.engine.tier_costs import TierCosts

VOCAB = 1000
POISON = -1  # what a slot holds that was never written


def next_token(context: Iterable[int], index: int = 0) -> int:
    """`index`: which of its request's sequences."""
    return zlib.crc32(",".join(map(str, (*context, *[-index] * bool(index)))).encode()) % VOCAB


def answer(prompt: tuple[int, ...], num_tokens: int, index: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, index))
    return tokens[len(prompt) :]


@dataclass(slots=True)
class Arriving:
    """A fetch under way, reported after so many steps more."""

    fetch: Fetch
    steps: int


class SlotRunner:
    """A real implementation of the port; also checks what every step must keep, and can be told to misbehave."""

    def __init__(self, limits: EngineLimits, config: SchedulerConfig) -> None:
        self.limits = limits
        self.config = config
        self.slots = [POISON] * (limits.num_blocks * limits.block_size)
        self.host = [[POISON] * limits.block_size for _ in range(limits.num_host_blocks)]
        self.steps: list[SchedulerOutput] = []
        self.raise_next: Exception | None = None
        self.not_finite: set[int] = set()  # seq_ids whose next logits are NaN
        self.before: Callable[[], None] = lambda: None
        self.arriving: dict[int, Arriving] = {}  # by ticket
        # How many steps a fetch takes; 0: it ends with the step that began it.
        self.fetch_steps: Callable[[], int] = lambda: 1
        self.seconds_a_block = 0.0  # that a fetch says it took
        self.tenants: Mapping[int, object] = {}  # of sequences, by seq_id: none may read what another's computed
        self._written_by: list[object] = [None] * limits.num_blocks  # tenants
        self._host_written_by: list[object] = [None] * limits.num_host_blocks

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self.before()
        self._check(output)
        self.steps.append(output)
        self._offload(output)
        self.arriving |= {fetch.ticket: Arriving(fetch, self.fetch_steps()) for fetch in output.fetches}
        if self.raise_next is not None:
            error, self.raise_next = self.raise_next, None
            self._spoil(output)
            raise error
        for entry in output.sequences:
            for position, token in enumerate(entry.token_ids, entry.start):
                self._write(entry, position, token)
        sampled, embeddings, prompt_logprobs, failed = {}, {}, {}, set()
        for entry in output.sequences:
            context = self._context(entry)
            if entry.prompt_targets:
                prompt_logprobs[entry.seq_id] = tuple(
                    SampledToken(token, logprob=-float(position))
                    for position, token in enumerate(entry.prompt_targets, entry.start + 1)
                )
            if entry.seq_id in self.not_finite:
                self.not_finite.discard(entry.seq_id)
                failed.add(entry.seq_id)
            elif entry.pooling:
                embeddings[entry.seq_id] = (float(next_token(context)),)
            elif entry.sampling is not None:
                assert entry.history is None or list(entry.history) == context
                sampled[entry.seq_id] = SampledToken(next_token(context, entry.index))
        fetched, seconds = self._fetched(output)
        return RunnerOutput(sampled, frozenset(failed), prompt_logprobs, embeddings, fetched, seconds)

    def _context(self, entry: ScheduledSequence) -> list[int]:
        """All that the sequence can see, as it is in the blocks."""
        size = self.limits.block_size
        context = [token for block in entry.block_table for token in self.slots[block * size : (block + 1) * size]]
        context = context[: entry.start + len(entry.token_ids)]
        assert POISON not in context, "a position was never computed"
        tenants = {self._written_by[block] for block in entry.block_table}
        assert tenants == {self.tenants.get(entry.seq_id)}, "a sequence reads what it must not"
        return context

    def _write(self, entry: ScheduledSequence, position: int, token: int) -> None:
        size = self.limits.block_size
        block, place = entry.block_table[position // size], position % size
        if place == 0:  # as in the real pool: what a block held before is gone with its first slot
            self.slots[block * size : (block + 1) * size] = [POISON] * size
            self._written_by[block] = self.tenants.get(entry.seq_id)
        self.slots[block * size + place] = token

    def _offload(self, output: SchedulerOutput) -> None:
        size = self.limits.block_size
        for copy in output.offloads:
            self.host[copy.target] = self.slots[copy.source * size : (copy.source + 1) * size]
            self._host_written_by[copy.target] = self._written_by[copy.source]

    def _fetched(self, output: SchedulerOutput) -> tuple[frozenset[int], float]:
        size = self.limits.block_size
        done = [arriving for arriving in self.arriving.values() if arriving.steps <= 0]
        if not (output.sequences or done) and self.arriving:
            done = [next(iter(self.arriving.values()))]
        for arriving in self.arriving.values():
            arriving.steps -= 1
        for arriving in done:
            del self.arriving[arriving.fetch.ticket]
            for copy in arriving.fetch.copies:
                self.slots[copy.target * size : (copy.target + 1) * size] = self.host[copy.source]
                self._written_by[copy.target] = self._host_written_by[copy.source]
        num_blocks = sum(len(arriving.fetch.copies) for arriving in done)
        return frozenset(arriving.fetch.ticket for arriving in done), num_blocks * self.seconds_a_block

    def _spoil(self, output: SchedulerOutput) -> None:
        """A step that raises may leave anything where it would have written."""
        for entry in output.sequences:
            for position in range(entry.start, entry.start + len(entry.token_ids)):
                self._write(entry, position, POISON)
        for copy in output.offloads:
            self.host[copy.target] = [POISON] * self.limits.block_size

    def _check(self, output: SchedulerOutput) -> None:
        assert output.num_tokens == sum(len(entry.token_ids) for entry in output.sequences)
        assert output.num_tokens > 0 or self.arriving or output.fetches, "a step with nothing to do"
        assert output.num_tokens <= self.config.max_num_batched_tokens
        assert len(output.sequences) <= self.config.max_num_seqs
        assert all(entry.token_ids for entry in output.sequences)
        for entry in output.sequences:
            length = entry.start + len(entry.token_ids)
            assert len(entry.block_table) == -(-length // self.limits.block_size)
        size = self.limits.block_size
        first_written = [(entry.start // size, entry) for entry in output.sequences]
        writers = Counter(block for first, entry in first_written for block in entry.block_table[first:])
        assert max(writers.values(), default=1) == 1, "two sequences of one step write into the same block"
        named = {block for entry in output.sequences for block in entry.block_table}
        begun = [*output.fetches, *(arriving.fetch for arriving in self.arriving.values())]
        targets = Counter(copy.target for fetch in begun for copy in fetch.copies)
        assert max(targets.values(), default=1) == 1, "two fetches write into the same block"
        assert not named & targets.keys(), "a sequence names a block that a fetch still writes into"
        assert not {copy.source for copy in output.offloads} & {
            copy.target for arriving in self.arriving.values() for copy in arriving.fetch.copies
        }, "a block is offloaded that a fetch still writes into"


def make_engine(
    *,
    num_blocks: int = 8,
    block_size: int = 4,
    max_model_len: int = 10_000_000,
    num_host_blocks: int = 0,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    prefix_caching: bool = True,
    costs: TierCosts | None = None,
    **config: Any,
) -> tuple[Engine, SlotRunner]:
    limits = EngineLimits(max_model_len, VOCAB, num_blocks, block_size, num_host_blocks)
    scheduler = SchedulerConfig(**config)
    runner = SlotRunner(limits, scheduler)
    return Engine(runner, limits, scheduler, seed, clock, prefix_caching=prefix_caching, costs=costs), runner


_ids = count()


def make_request(
    prompt: Iterable[int] | int,
    max_tokens: int = 4,
    *,
    request_id: str = "",
    stop_token_ids: tuple[int, ...] = (),
    seed: int | None = None,
    arrival: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    **fields: Any,
) -> AddRequest:
    """A prompt of those tokens, or of that many. Prompts of a length are told apart by the request's number.

    `sampling` and `fields`: what else is to be set in SamplingParams and in AddRequest.
    """
    number = next(_ids)
    tokens = tuple((number * 31 + i) % VOCAB for i in range(prompt)) if isinstance(prompt, int) else tuple(prompt)
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids, seed=seed, **(sampling or {}))
    return AddRequest(request_id or f"r{number}", tokens, params, arrival, **fields)


def run_to_end(engine: Engine, most_steps: int = 10_000) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left, checking the books after each step; outputs by request_id."""
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(most_steps):
        if not engine.has_work:
            break
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_integrity()
    assert not engine.has_work, f"still busy after {most_steps} steps"
    assert engine.kv_cache.num_held == 0
    return outputs


def token_ids(outputs: Iterable[RequestOutput], index: int | None = None) -> list[int]:
    """`index`: of that sequence only."""
    outputs = [output for output in outputs if index in (None, output.index)]
    return [token.token_id for output in outputs for token in output.tokens]
