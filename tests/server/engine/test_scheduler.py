"""What one step holds, as tables: per step, how many tokens of which sequence."""

from collections.abc import Reversible
from dataclasses import replace
from typing import Any

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.errors import KVCacheCorrupted, SchedulerStuck
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.request import AddRequest
from pagemill_server.engine.schedule import SchedulerOutput
from pagemill_server.engine.scheduler import Scheduler
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request


class Bench:
    """A scheduler with sequences of the given prompt lengths queued; `step` computes what was planned, token 7 each time."""

    def __init__(
        self,
        prompts: list[int],
        *,
        budget: int = 512,
        num_blocks: int = 100,
        policy: Policy | None = None,
        **config: Any,
    ) -> None:
        self.now = 0.0
        self.cache = KVCache(num_blocks, block_size=4)
        self.config = SchedulerConfig(max_num_batched_tokens=budget, **config)
        self.scheduler = Scheduler(self.cache, self.config, policy or Policy(self.config))
        self.sequences: list[Sequence] = []  # by seq_id
        self.last = SchedulerOutput((), 0)
        for prompt in prompts:
            self.queue(prompt)

    def queue(self, prompt: int, **fields: Any) -> int:
        """One sequence more, of so many prompt tokens; its seq_id."""
        self.add(make_request(prompt, **fields))
        return len(self.sequences) - 1

    def add(self, request: AddRequest) -> None:
        for index in range(request.sampling.n):
            self.sequences.append(Sequence(len(self.sequences), request, seed=0, index=index))
            self.scheduler.roster.add(self.sequences[-1])

    def finish(self, seq_id: int) -> None:
        self.scheduler.roster.remove(self.sequences[seq_id])

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.scheduler.configure(self.config, self.scheduler.roster.policy)

    def step(self) -> dict[int, int]:
        self.last = self.scheduler.schedule(self.now)
        assert self.last.num_tokens == sum(len(entry.token_ids) for entry in self.last.sequences)
        for entry in self.last.sequences:
            sequence = self.sequences[entry.seq_id]
            sequence.num_computed_tokens += len(entry.token_ids)
            if entry.sampling is not None:
                sequence.token_ids.append(7)
        self.scheduler.check_integrity()
        return {entry.seq_id: len(entry.token_ids) for entry in self.last.sequences}

    def steps(self, number: int) -> list[dict[int, int]]:
        return [self.step() for _ in range(number)]


@pytest.mark.parametrize(
    ("prompts", "options", "steps"),
    [
        pytest.param([3], {}, [{0: 3}, {0: 1}, {0: 1}], id="a prompt, then a token a step"),
        pytest.param([10], {"budget": 4}, [{0: 4}, {0: 4}, {0: 2}, {0: 1}], id="a prompt in chunks"),
        pytest.param([3, 2], {}, [{0: 3, 1: 2}, {0: 1, 1: 1}], id="two prompts in one step"),
        pytest.param([3, 9], {"budget": 5}, [{0: 3, 1: 2}, {0: 1, 1: 4}, {0: 1, 1: 3}, {0: 1, 1: 1}], id="decode, chunk"),
        pytest.param([2, 2, 2], {"max_num_seqs": 2}, [{0: 2, 1: 2}, {0: 1, 1: 1}], id="max_num_seqs"),
        pytest.param([1] * 6, {"budget": 4}, [{0: 1, 1: 1, 2: 1, 3: 1}] * 2, id="no more run than the budget has tokens"),
        pytest.param([2, 2], {"budget": 1}, [{0: 1}, {0: 1}, {0: 1}], id="a budget of one token"),
        pytest.param([4, 9, 1], {"num_blocks": 3, "bypass_seconds": 0.0}, [{0: 4}, {0: 1}], id="nobody passes a head"),
    ],
)  # fmt: skip
def test_steps(prompts: list[int], options: dict[str, Any], steps: list[dict[int, int]]) -> None:
    assert Bench(prompts, **options).steps(len(steps)) == steps


def test_only_the_chunk_that_reaches_the_end_is_sampled() -> None:
    bench = Bench([10], budget=4)
    sampled = []
    for _ in range(5):
        bench.step()
        (entry,) = bench.last.sequences
        sampled.append((entry.start, entry.sampling is not None, entry.output_position))
    assert sampled == [(0, False, 0), (4, False, 0), (8, True, 0), (10, True, 1), (11, True, 2)]


def test_a_chunk_is_handed_over_with_just_the_blocks_that_it_touches() -> None:
    bench = Bench([10], budget=4)
    tables = []
    for _ in range(3):
        bench.step()
        tables.append(bench.last.sequences[0].block_table)
    assert [len(table) for table in tables] == [1, 2, 3]
    assert tables[2][:2] == tables[1]


def test_nothing_to_do_is_an_empty_step() -> None:
    assert Bench([]).step() == {}


def test_the_last_admitted_gives_way_and_comes_back_first() -> None:
    bench = Bench([4, 4, 4], num_blocks=4)  # two of two blocks each; the third waits
    assert bench.steps(5) == [{0: 4, 1: 4}] + [{0: 1, 1: 1}] * 4
    assert len(bench.scheduler.roster.waiting) == 1
    assert bench.step() == {0: 1}  # both need a third block, none is free
    assert bench.scheduler.roster.totals.num_preemptions == 1
    assert bench.sequences[1].num_computed_tokens == 0
    assert bench.sequences[1].num_tokens == 9
    assert bench.scheduler.roster.waiting.head() is bench.sequences[1]
    bench.scheduler.roster.remove(bench.sequences[0])
    assert bench.step() == {1: 9}, "it comes back as new: everything is computed again, its tokens are kept"
    assert bench.last.sequences[0].output_position == 5
    assert bench.last.sequences[0].token_ids == tuple(bench.sequences[1].token_ids[:9])


class NewestFirst(Policy):
    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (-sequence.seq_id,)


def test_blocks_that_a_preemption_freed_are_not_given_to_the_queue_in_the_same_step() -> None:
    bench = Bench([4, 4], num_blocks=4, max_num_seqs=2, policy=NewestFirst(SchedulerConfig()))
    bench.steps(5)
    bench.queue(1)
    assert bench.step() == {1: 1}, "a block and a place are free for the newest, but the running may still need them"
    assert bench.cache.num_free == 1
    assert bench.step() == {1: 1, 2: 1}


def test_removing_twice_is_removing_once() -> None:
    bench = Bench([4, 4], max_num_seqs=1)
    bench.step()
    for sequence in bench.sequences * 2:
        bench.scheduler.roster.remove(sequence)
    assert not bench.scheduler.roster.has_work
    assert bench.cache.num_free == 100
    bench.scheduler.check_integrity()


class Contrary(Policy):
    """Last come, first served; the oldest gives way; nobody may come in. The engine must make progress all the same."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (-sequence.seq_id,)

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return list(reversed(running))[-1]

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        return False


def test_a_policy_orders_the_queue_and_holds_back_but_never_stops_all() -> None:
    bench = Bench([2, 2, 2], policy=Contrary(SchedulerConfig()))
    assert bench.step() == {2: 2}
    assert bench.step() == {2: 1}, "the policy lets nobody in beside it"
    bench.scheduler.roster.remove(bench.sequences[2])
    assert bench.step() == {1: 2}


class Listener(Policy):
    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.asked: list[tuple[int, int, int]] = []

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        self.asked.append((sequence.seq_id, needed_blocks, free_blocks))
        return True


def test_a_policy_is_told_what_admission_would_take() -> None:
    policy = Listener()
    Bench([4, 3, 8], policy=policy).step()
    assert policy.asked == [(1, 1, 98), (2, 3, 97)]


class OldestGivesWay(Contrary):
    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        return True


def test_work_advances_whoever_the_policy_lets_give_way() -> None:
    bench = Bench([4, 4, 4, 4], num_blocks=5, policy=OldestGivesWay(SchedulerConfig()))
    for _ in range(400):
        bench.step()
        for sequence in bench.sequences:
            if sequence.num_output_tokens >= 14:  # 18 tokens: alone it takes all 5 blocks
                bench.scheduler.roster.remove(sequence)
        if not bench.scheduler.roster.has_work:
            break
    assert not bench.scheduler.roster.has_work
    assert bench.scheduler.roster.totals.num_preemptions > 0


class Stranger(Policy):
    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return Sequence(99, make_request(1), seed=0)


def test_for_a_victim_that_does_not_run_the_last_admitted_goes() -> None:
    bench = Bench([4, 4], num_blocks=4, policy=Stranger(SchedulerConfig()))
    assert bench.steps(6)[-1] == {0: 1}
    assert bench.scheduler.roster.waiting.members() == [bench.sequences[1]]


def test_work_that_can_never_run_is_an_error_and_not_a_spin() -> None:
    bench = Bench([12], num_blocks=3)  # needs a block more; the engine refuses such a request before it gets here
    with pytest.raises(SchedulerStuck, match="1 sequences wait"):
        bench.step()


def test_integrity_finds_blocks_held_by_who_does_not_run() -> None:
    bench = Bench([4])
    bench.step()
    del bench.scheduler.roster.running[0]
    with pytest.raises(KVCacheCorrupted, match="hold blocks"):
        bench.scheduler.check_integrity()
