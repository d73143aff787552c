"""A model runner without a model, for the engine's tests: its "KV cache" keeps the token of each slot.

The next token is a hash of the whole context, read back through the block table. So a wrong block, a lost position, a stale
slot or a chunk out of place changes the answer, and `answer` says what it must be without any engine.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from itertools import count

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, RequestOutput, SampledToken, SamplingParams
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput

VOCAB = 1000
POISON = -1  # what a slot holds that was never written


def next_token(context: Iterable[int]) -> int:
    return zlib.crc32(",".join(map(str, context)).encode()) % VOCAB


def answer(prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class SlotRunner:
    """A real implementation of the port; also checks what every step must keep, and can be told to misbehave."""

    def __init__(self, limits: EngineLimits, config: SchedulerConfig) -> None:
        self.limits = limits
        self.config = config
        self.slots = [POISON] * (limits.num_blocks * limits.block_size)
        self.steps: list[SchedulerOutput] = []
        self.raise_next: Exception | None = None
        self.not_finite: set[int] = set()  # seq_ids whose next logits are NaN
        self.before: Callable[[], None] = lambda: None

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self.before()
        self._check(output)
        self.steps.append(output)
        if self.raise_next is not None:
            error, self.raise_next = self.raise_next, None
            raise error
        for entry in output.sequences:
            for position, token in enumerate(entry.token_ids, entry.start):
                self.slots[self._slot(entry.block_table, position)] = token
        sampled, failed = {}, set()
        for entry in output.sequences:
            if entry.seq_id in self.not_finite:
                self.not_finite.discard(entry.seq_id)
                failed.add(entry.seq_id)
            elif entry.sampling is not None:
                length = entry.start + len(entry.token_ids)
                context = [self.slots[self._slot(entry.block_table, position)] for position in range(length)]
                assert POISON not in context, "a position was never computed"
                sampled[entry.seq_id] = SampledToken(next_token(context))
        return RunnerOutput(sampled, frozenset(failed))

    def _slot(self, block_table: tuple[int, ...], position: int) -> int:
        size = self.limits.block_size
        return block_table[position // size] * size + position % size

    def _check(self, output: SchedulerOutput) -> None:
        assert output.num_tokens == sum(len(entry.token_ids) for entry in output.sequences)
        assert 0 < output.num_tokens <= self.config.max_num_batched_tokens
        assert len(output.sequences) <= self.config.max_num_seqs
        assert all(entry.token_ids for entry in output.sequences)
        used = [block for entry in output.sequences for block in entry.block_table]
        assert len(used) == len(set(used)), "two sequences of one step share a block"
        for entry in output.sequences:
            length = entry.start + len(entry.token_ids)
            assert len(entry.block_table) == -(-length // self.limits.block_size)


def make_engine(
    *,
    num_blocks: int = 8,
    block_size: int = 4,
    max_model_len: int = 10_000_000,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    **config: int,
) -> tuple[Engine, SlotRunner]:
    limits = EngineLimits(max_model_len, VOCAB, num_blocks, block_size)
    scheduler = SchedulerConfig(**config)  # type: ignore[arg-type]
    runner = SlotRunner(limits, scheduler)
    return Engine(runner, limits, scheduler, seed, clock), runner


_ids = count()


def make_request(
    prompt: Iterable[int] | int,
    max_tokens: int = 4,
    *,
    request_id: str = "",
    stop_token_ids: tuple[int, ...] = (),
    seed: int | None = None,
    arrival: float = 0.0,
) -> AddRequest:
    """A prompt of those tokens, or of that many. Prompts of a length are told apart by the request's number."""
    number = next(_ids)
    tokens = tuple((number * 31 + i) % VOCAB for i in range(prompt)) if isinstance(prompt, int) else tuple(prompt)
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids, seed=seed)
    return AddRequest(request_id or f"r{number}", tokens, sampling, arrival)


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


def token_ids(outputs: Iterable[RequestOutput]) -> list[int]:
    return [token.token_id for output in outputs for token in output.tokens]
