"""The block cache under any order of what a scheduler may do, against a memory that knows what each block really holds.

Steps fail, copies are made late and in any order, sequences go while their blocks are on the way. After every operation the
books add up, and every sequence that may run finds in its blocks the tokens that it has, under its own salt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.prefix import PrefixMatch
from pagemill_server.engine.schedule import BlockCopy, Fetch
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request

SALTS = ("red", "blue", "green", "")
LENGTHS = (8, 7, 5, 3, 10)
MOST_OUTPUT = 2
BURST = 15  # rounds
Content = tuple[str, tuple[int, ...]]  # who may read it, and all tokens up to the block's end


@dataclass
class Memory:
    """Both tiers, and the fetches that were begun and not made yet."""

    device: dict[int, Content] = field(default_factory=dict)
    host: dict[int, Content] = field(default_factory=dict)
    begun: list[Fetch] = field(default_factory=list)

    def offload(self, copies: tuple[BlockCopy, ...], *, works: bool) -> None:
        for copy in copies:
            self.host.pop(copy.target, None)
            if works and copy.source in self.device:
                self.host[copy.target] = self.device[copy.source]

    def make(self, fetch: Fetch) -> None:
        self.begun.remove(fetch)
        for copy in fetch.copies:
            self.device[copy.target] = self.host[copy.source]


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(6, 12),
        num_host_blocks=st.sampled_from([20, 6, 4, 0]),
        block_size=st.sampled_from([2, 1, 3]),
        prefix_caching=st.sampled_from([True, True, False]),
    )
    def start(self, num_blocks: int, num_host_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.cache = KVCache(num_blocks, block_size, prefix_caching=prefix_caching, num_host_blocks=num_host_blocks)
        self.prefix_caching = prefix_caching
        self.memory = Memory()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.fetching: dict[int, Sequence] = {}  # by ticket
        self.relying: dict[Sequence, Sequence] = {}  # on whose blocks, to be filled by the step that is being planned
        self.fetches: list[Fetch] = []  # of the step that is being planned
        self.reported: list[int] = []
        self.number = 0

    # What comes in.

    @precondition(lambda self: len(self.waiting) < 4)
    @rule(
        prompts=st.lists(
            st.tuples(st.sampled_from(SALTS), st.sampled_from(LENGTHS), st.lists(st.integers(0, 1), max_size=2)),
            min_size=1,
            max_size=3,
        ),
        n=st.sampled_from([1, 1, 1, 3]),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
    )
    def arrive(self, prompts: list[tuple[str, int, list[int]]], n: int, prompt_logprobs: int | None) -> None:
        """Prompts are beginnings of one text, with tails of their own: many share, few all."""
        for salt, length, tail in prompts:
            longest = length + len(tail) + MOST_OUTPUT + 2
            if self.cache.blocks_for(longest) > self.cache.num_blocks:
                continue  # an engine refuses it
            request = make_request([*range(length), *tail], request_id=f"r{self.number}")
            sampling = replace(request.sampling, prompt_logprobs=prompt_logprobs)
            request = replace(request, cache_salt=salt, sampling=sampling)
            for index in range(n):
                self.waiting.append(Sequence(self.number, request, seed=0, index=index))
                self.number += 1

    # What a step is.

    @rule(order=st.integers(0, 5), takes_host=st.sampled_from([True, True, True, False]))
    def admit(self, order: int, takes_host: bool) -> None:
        """Whoever fits, and at least some out of turn; the others of a request beside its leader, where that runs."""
        order %= len(self.waiting) + 1
        for sequence in self.waiting[order:] + self.waiting[:order]:
            match = self.match_for(sequence)
            assert len(match.device + match.host) * self.cache.block_size < sequence.num_tokens
            self.start_running(sequence, match if takes_host else replace(match, host=()))
            self.cache.check_integrity()

    def match_for(self, sequence: Sequence) -> PrefixMatch:
        """Of the leader in the step in which it computes the end of its prompt, or later; else by content."""
        leaders = [] if sequence.num_output_tokens else [s for s in self.running if s.request is sequence.request]
        return self.cache.shared(leaders[0], sequence) if leaders else self.cache.match(sequence)

    def start_running(self, sequence: Sequence, match: PrefixMatch) -> None:
        needed, available = self.cache.blocks_to_admit(sequence.num_tokens + 1, match), self.cache.available
        admission = self.cache.admit(sequence, sequence.num_tokens + 1, match)
        assert (admission is None) == (needed > available)
        if admission is None:
            return
        assert self.cache.available == available - needed
        sequence.num_computed_tokens = admission.cached_tokens
        self.waiting.remove(sequence)
        self.running.append(sequence)
        for leader in self.running:
            if leader.seq_id == match.leader and leader.num_computed_tokens < sequence.num_computed_tokens:
                self.relying[sequence] = leader
        if admission.fetch is not None:
            self.fetches.append(admission.fetch)
            self.fetching[admission.fetch.ticket] = sequence

    @precondition(lambda self: self.running or self.waiting)
    @rule(
        chunk=st.sampled_from([20, 4, 2, 1]),
        number=st.integers(1, 5),
        slow=st.booleans(),
        takes_host=st.sampled_from([True, True, True, False]),
    )
    def steps(self, chunk: int, number: int, slow: bool, takes_host: bool) -> None:
        """Copies are made beside them, unless they are slow."""
        for _ in range(number):
            self.admit(0, takes_host)
            self.step(chunk, works=True)
            self.the_books_add_up()
            if not slow and self.memory.begun:
                self.a_copy_is_made(number)
                self.copies_are_reported(())
                self.the_books_add_up()

    @rule()
    def a_step_fails(self) -> None:
        self.step(100, works=False)

    def step(self, chunk: int, *, works: bool) -> None:
        """Everybody who may computes a chunk, and all that another shares already; a failed step ends them."""
        for sequence in self.active():
            if sequence in self.running and not self.cache.grow(sequence, sequence.num_tokens):
                self.preempt(sequence)
        active = self.active()
        offloads = self.cache.take_offloads()
        self.memory.offload(offloads, works=works)
        self.memory.begun += self.fetches
        self.fetches = []
        self.relying = {}
        ends = {}
        for sequence in active:
            least = max((s.num_computed_tokens for s in active if s.request is sequence.request), default=0)
            ends[sequence] = min(sequence.num_tokens, max(least, sequence.num_computed_tokens + chunk))
            self.write(sequence, ends[sequence], works)
        if not works:
            self.cache.undo_offloads(offloads)
        for sequence in active:
            if works:
                self.check(sequence, ends[sequence])
                self.advance(sequence, ends[sequence])
            else:
                self.leave(sequence)

    def write(self, sequence: Sequence, end: int, works: bool) -> None:
        size = self.cache.block_size
        for position in range(sequence.num_computed_tokens, end):
            block = self.cache.table(sequence, end)[position // size]
            if works:
                self.memory.device[block] = (self.reader(sequence), tuple(sequence.token_ids[: position + 1]))
            else:
                self.memory.device.pop(block, None)

    def advance(self, sequence: Sequence, end: int) -> None:
        sequence.num_computed_tokens = end
        self.cache.commit(sequence)
        if end == sequence.num_tokens:
            sequence.token_ids.append(end)  # so that an answer goes on in the text that prompts begin with
        if sequence.num_output_tokens > MOST_OUTPUT:
            self.leave(sequence)

    @precondition(lambda self: self.memory.begun)
    @rule(place=st.integers(0, 5))
    def a_copy_is_made(self, place: int) -> None:
        fetch = self.memory.begun[place % len(self.memory.begun)]
        self.memory.make(fetch)
        self.reported.append(fetch.ticket)

    @rule(more=st.sampled_from([(), (), (7, 1000)]))
    def copies_are_reported(self, more: tuple[int, ...]) -> None:
        under_way = {fetch.ticket for fetch in self.memory.begun + self.fetches}
        tickets = [*(ticket for ticket in more if ticket not in under_way), *self.reported]
        expected = {self.fetching.pop(ticket).seq_id for ticket in self.reported if ticket in self.fetching}
        self.reported = []
        assert self.cache.fetched(tickets) == expected

    @rule(seed=st.integers(0, 2**32))
    def traffic(self, seed: int) -> None:
        """Many requests of all kinds, more of them than rules drawn one by one would bring."""
        rng = random.Random(seed)
        for _ in range(BURST):
            prompts = [
                (rng.choice(SALTS), rng.choice(LENGTHS), [rng.randrange(2)] * rng.randrange(3))
                for _ in range(rng.randrange(1, 4))
            ]
            if len(self.waiting) < 4:
                self.arrive(prompts, rng.choice([1, 1, 1, 3]), rng.choice([None, None, None, 0]))
            self.admit(rng.randrange(6), rng.random() < 0.9)
            self.steps(rng.choice([20, 4, 2, 1]), rng.randrange(4), rng.random() < 0.3, True)
            if rng.random() < 0.3:
                self.some_are_preempted(rng.randrange(1, 4))
            if rng.random() < 0.2 and self.running:
                self.one_leaves(rng.randrange(10), rng.random() < 0.5, rng.random() < 0.2)
            if rng.random() < 0.05:
                self.a_step_fails()
            self.every_sequence_finds_what_it_computed()
            self.the_books_add_up()

    # What goes.

    @precondition(lambda self: self.running)
    @rule(number=st.integers(1, 3))
    def some_are_preempted(self, number: int) -> None:
        for sequence in self.active()[-number:]:
            if sequence in self.running:
                self.preempt(sequence)

    def preempt(self, sequence: Sequence) -> None:
        self.lead_on(sequence)
        self.running.remove(sequence)
        self.cache.release(sequence, returns=True)
        sequence.num_computed_tokens = 0
        self.waiting.append(sequence)

    @precondition(lambda self: self.waiting or self.running)
    @rule(place=st.integers(0, 9), twice=st.booleans(), ran_away=st.sampled_from([False, False, True]))
    def one_leaves(self, place: int, twice: bool, ran_away: bool) -> None:
        """It finished, or was aborted, wherever it stood."""
        everybody = self.running + self.waiting
        sequence = everybody[place % len(everybody)]
        if ran_away:
            self.cache.forget(sequence)
        self.leave(sequence)
        if twice:
            self.cache.release(sequence)

    def lead_on(self, leader: Sequence) -> None:
        """It won't compute in this step: those that would have read it wait again."""
        self.relying.pop(leader, None)
        for sequence in [s for s, other in self.relying.items() if other is leader]:
            self.preempt(sequence)

    def leave(self, sequence: Sequence) -> None:
        self.lead_on(sequence)
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.fetching = {ticket: s for ticket, s in self.fetching.items() if s is not sequence}
        self.cache.release(sequence)

    # What must hold.

    def reader(self, sequence: Sequence) -> str:
        request = sequence.request
        return request.cache_salt if self.prefix_caching else request.request_id

    def check(self, sequence: Sequence, length: int) -> None:
        """Its blocks hold its tokens up to there."""
        size = self.cache.block_size
        for index, block in enumerate(self.cache.table(sequence, length)):
            reader, tokens = self.memory.device[block]
            end = min(length, (index + 1) * size)
            assert tokens[:end] == tuple(sequence.token_ids[:end]), f"block {block} of {sequence.seq_id}"
            assert reader == self.reader(sequence), f"block {block} is {reader}'s"

    @invariant()
    def every_sequence_finds_what_it_computed(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence in self.active():
            if sequence not in self.relying:
                self.check(sequence, sequence.num_computed_tokens)

    def active(self) -> list[Sequence]:
        """Who may run."""
        fetching = set(self.fetching.values())
        return [sequence for sequence in self.running if sequence not in fetching]

    @invariant()
    def the_books_add_up(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_integrity()
            self.cache.check_order()
            assert self.cache.holders == {sequence.seq_id for sequence in self.running}
            assert not self.cache.num_parked or len(self.memory.begun + self.fetches) + len(self.reported) > len(
                self.fetching
            )

    def teardown(self) -> None:
        """When all have gone and every copy is made, every block is free again or keeps what may be asked for."""
        if not hasattr(self, "cache"):
            return
        for sequence in self.running + self.waiting:
            self.leave(sequence)
        self.step(1, works=True)
        while self.memory.begun:
            self.a_copy_is_made(0)
        self.copies_are_reported(())
        self.the_books_add_up()
        assert (self.cache.num_held, self.cache.num_parked) == (0, 0)
        assert self.cache.available == self.cache.num_blocks
        assert self.prefix_caching or self.cache.num_cached == 0


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)
TestCache = CacheMachine.TestCase
