"""One simulated replica: continuous batching under a budget of tokens a step, a paged KV cache with preemption, first come first
served.

It keeps the rules of `engine/scheduler` (without prefix sharing and without passing a blocked head) but only counts: a step costs
the same whether one sequence decodes in it or sixty. What a step takes comes from `step_cost`. Driven by `fleet`; a test holds it
to the real engine.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from benchmarks.autoscale_replay.request import Request
from benchmarks.step_cost import StepCost
from pagemill_server.engine.step_model import StepShape, attended


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """What every replica of a fleet is."""

    cost: StepCost
    num_blocks: int = 728  # 1 GiB of SmolLM2-135M in float32
    block_size: int = 32  # tokens
    max_num_seqs: int = 64
    watermark: float = 0.01  # share of the blocks that an admission leaves free while others run

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(slots=True, eq=False)
class _Running:
    """A sequence that has its blocks."""

    number: int  # in the order of admission
    request: Request
    to_prefill: int  # tokens known at admission: the prompt, and what was generated before a preemption
    computed: int = 0  # of them
    joined: int = -1  # number of the step that computed the last of them; -1: none has yet
    gone: bool = False  # finished or preempted: heap entries of it are stale


@dataclass(slots=True)
class Replica:
    """Time goes on from step to step: `begin` plans one and says when it ends, `finish` takes its tokens."""

    name: str
    config: ReplicaConfig
    used_blocks: int = 0
    preemptions: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    _running: dict[int, _Running] = field(default_factory=dict)  # by number
    _prefilling: list[_Running] = field(default_factory=list)
    _ends: list[tuple[int, int, _Running]] = field(default_factory=list)  # heap: (last step, number, sequence)
    _step: int = 0
    _admitted: int = 0
    _num_decoding: int = 0
    _context: int = 0  # tokens in the cache of those that decode, summed
    _grows: list[int] = field(
        default_factory=list
    )  # sequences by (step modulo block size) in which they want another block
    _prepaid: int = 0  # of those that want one in the coming step, so many have it from their admission
    _chunks: list[tuple[_Running, int]] = field(default_factory=list)  # of the step that runs

    def __post_init__(self) -> None:
        self._grows = [0] * self.config.block_size

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def load(self) -> int:
        """Requests that are not done."""
        return len(self.waiting) + len(self._running)

    @property
    def kv_usage(self) -> float:
        return self.used_blocks / self.config.num_blocks

    def begin(self) -> float:
        """Plan a step; returns the seconds that it takes, 0 when there is nothing to do."""
        if not self.waiting and not self._running:
            return 0.0
        self._step += 1
        preempted = self._grow()
        left = self.config.cost.budget - self._num_decoding
        self._chunks = []
        for sequence in self._prefilling:
            left -= self._take(sequence, left)
        if not preempted:
            while left > 0 and (newcomer := self._admit()) is not None:
                left -= self._take(newcomer, left)
        decoding = self._num_decoding
        context = self._context + decoding + sum(attended(one.computed, length) for one, length in self._chunks)
        tokens = decoding + sum(length for _, length in self._chunks)
        assert tokens, f"{self.name}: {self.load} requests and nobody can go on"
        return self.config.cost.shape_seconds(StepShape(tokens, decoding + len(self._chunks), context))

    def finish(self, now: float) -> list[Request]:
        """The planned step is done; returns who ended with it."""
        self._context += self._num_decoding
        self._prepaid = 0
        done = self._pop_ended(now)
        for sequence, length in self._chunks:
            sequence.computed += length
            if sequence.computed == sequence.to_prefill:
                self._prefilling.remove(sequence)
                self._join(sequence, now, done)
        self._chunks = []
        return done

    def check(self) -> None:
        """The books, for tests: blocks that are held and those that are used, and no more than there are."""
        held = sum(self._held(sequence, self._step) for sequence in self._running.values())
        assert held == self.used_blocks <= self.config.num_blocks, (held, self.used_blocks)
        assert len(self._running) <= self.config.max_num_seqs
        assert self._num_decoding + len(self._prefilling) == len(self._running)

    def _take(self, sequence: _Running, left: int) -> int:
        length = min(left, sequence.to_prefill - sequence.computed)
        if length > 0:
            self._chunks.append((sequence, length))
        return max(0, length)

    def _admit(self) -> _Running | None:
        """The head of the queue, if it finds a place and its blocks."""
        if not self.waiting or len(self._running) >= self.config.max_num_seqs:
            return None
        request = self.waiting[0]
        known = request.prompt_tokens + request.generated
        needed = self.config.blocks_for(known + 1)
        free = int(self.config.watermark * self.config.num_blocks) if self._running else 0
        if self.used_blocks + needed + free > self.config.num_blocks:
            return None
        self.waiting.popleft()
        self.used_blocks += needed
        self._admitted += 1
        sequence = _Running(self._admitted, request, known)
        self._running[sequence.number] = sequence
        self._prefilling.append(sequence)
        return sequence

    def _grow(self) -> bool:
        """Blocks for those whose last is full; the last admitted give way until that fits. True: some did."""
        preempted = False
        while self.used_blocks + (wanted := self._grows[self._step % self.config.block_size] - self._prepaid) > (
            self.config.num_blocks
        ):
            self._preempt(next(reversed(self._running.values())))
            preempted = True
        self.used_blocks += wanted
        return preempted

    def _preempt(self, sequence: _Running) -> None:
        self.preemptions += 1
        if sequence.joined >= 0:
            if self._is_prepaid(sequence, self._step):
                self._prepaid -= 1
            sequence.request.generated += self._step - 1 - sequence.joined
            self._context -= self._length(sequence, self._step - 1)
        else:
            self._prefilling.remove(sequence)
        self._drop(sequence, self._step - 1)
        self.waiting.appendleft(sequence.request)

    def _join(self, sequence: _Running, now: float, done: list[Request]) -> None:
        """Its first token, or after a preemption its next, has come with the end of its prompt."""
        request = sequence.request
        request.generated += 1
        if request.first is None:
            request.first = now
        if request.generated == request.output_tokens:
            self._end(sequence, now, done, self._step)
            return
        sequence.joined = self._step
        self._num_decoding += 1
        self._context += sequence.to_prefill
        self._grows[self._phase(sequence)] += 1
        self._prepaid += self._is_prepaid(sequence, self._step + 1)
        last = self._step + request.output_tokens - request.generated
        heapq.heappush(self._ends, (last, sequence.number, sequence))

    def _pop_ended(self, now: float) -> list[Request]:
        done: list[Request] = []
        while self._ends and self._ends[0][0] <= self._step:
            sequence = heapq.heappop(self._ends)[2]
            if not sequence.gone:
                sequence.request.generated = sequence.request.output_tokens
                self._context -= self._length(sequence, self._step)
                self._end(sequence, now, done, self._step)
        return done

    def _end(self, sequence: _Running, now: float, done: list[Request], step: int) -> None:
        sequence.request.ended = now
        self._drop(sequence, step)
        done.append(sequence.request)

    def _drop(self, sequence: _Running, step: int) -> None:
        """Its blocks are free again; it has computed up to that step."""
        if sequence.joined >= 0:
            self._num_decoding -= 1
            self._grows[self._phase(sequence)] -= 1
        self.used_blocks -= self._held(sequence, step)
        sequence.gone = True
        del self._running[sequence.number]

    def _phase(self, sequence: _Running) -> int:
        return (sequence.joined + 1 - sequence.to_prefill) % self.config.block_size

    def _is_prepaid(self, sequence: _Running, step: int) -> bool:
        """A prompt that ends with a block took another at its admission, for its first token."""
        return step == sequence.joined + 1 and sequence.to_prefill % self.config.block_size == 0

    def _length(self, sequence: _Running, step: int) -> int:
        """Tokens in the cache after that step."""
        return sequence.to_prefill + step - sequence.joined

    def _held(self, sequence: _Running, step: int) -> int:
        if sequence.joined < 0:
            return self.config.blocks_for(sequence.to_prefill + 1)
        return self.config.blocks_for(max(sequence.to_prefill + 1, self._length(sequence, step)))
