"""Who comes in, and whom the policy may send away for it: steps as tables, as in test_scheduler."""

from collections.abc import Reversible

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request
from tests.server.engine.test_scheduler import Bench


def running(bench: Bench) -> list[int]:
    return list(bench.scheduler.roster.running)


# Passing a head whose blocks aren't free.


def test_small_ones_pass_a_blocked_head_for_a_bounded_time() -> None:
    bench = Bench([4, 40, 1, 1, 1], num_blocks=12, bypass_seconds=2.0, max_num_seqs=3)
    assert bench.step() == {0: 4, 2: 1, 3: 1}, "10 blocks are free, and the head needs 11"
    bench.finish(2)
    bench.now = 1.9
    assert bench.step() == {0: 1, 3: 1, 4: 1}
    bench.finish(3)
    bench.queue(1)
    bench.now = 2.0
    assert bench.step() == {0: 1, 4: 1}, "a place and blocks are free, but the head has been passed for long enough"
    bench.finish(4)
    bench.finish(0)
    assert bench.step() == {1: 40, 5: 1}


def test_the_time_counts_from_when_the_head_was_first_blocked() -> None:
    bench = Bench([4, 40], num_blocks=12, bypass_seconds=2.0)
    bench.now = 100.0
    bench.step()
    bench.now = 101.0
    bench.queue(1)
    assert bench.step() == {0: 1, 2: 1}
    first = bench.queue(9, arrival=-1.0)  # another head between, which fits: the time of the one before goes on
    assert bench.step() == {0: 1, 2: 1, first: 9}
    bench.now = 102.0
    bench.queue(1)
    assert bench.step() == {0: 1, 2: 1, first: 1}


def test_no_more_than_a_window_is_looked_through() -> None:
    bench = Bench([4] + [40] * 9 + [1], num_blocks=12, bypass_seconds=2.0)
    assert bench.step() == {0: 4}
    bench.finish(5)
    assert bench.step() == {0: 1, 10: 1}


def test_nobody_passes_a_head_that_the_policy_holds_back() -> None:
    class Strict(Policy):
        def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
            return sequence.seq_id != 1

    assert Bench([4, 4, 1], policy=Strict(SchedulerConfig())).step() == {0: 4}


def test_who_was_preempted_and_is_blocked_again_is_passed_for_as_long_again() -> None:
    bench = Bench([4, 40], num_blocks=12, bypass_seconds=2.0)
    bench.step()
    bench.finish(0)
    bench.now = 5.0
    assert bench.step() == {1: 40}
    bench.queue(8, arrival=-1.0)
    bench.scheduler.roster.preempt(bench.sequences[1])
    assert bench.step() == {2: 8}
    bench.queue(1)
    assert bench.step() == {2: 1, 3: 1}


# The watermark.


@pytest.mark.parametrize(
    ("watermark", "admitted"), [(0.0, [0, 1]), (0.2, [0, 1]), (0.21, [0, 1]), (0.3, [0]), (1.0, [0])]
)
def test_an_admission_leaves_the_watermark_free_while_others_run(watermark: float, admitted: list[int]) -> None:
    bench = Bench([4 * 7 - 1, 3], num_blocks=10, watermark=watermark, bypass_seconds=0.0)
    bench.step()
    assert running(bench) == admitted


def test_one_alone_may_have_the_watermark() -> None:
    bench = Bench([39], num_blocks=10, watermark=1.0)
    assert bench.step() == {0: 39}


# Displacing.


class LastGivesWay(Policy):
    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return next(iter(reversed(running)))


def displacing() -> Policy:
    return LastGivesWay(SchedulerConfig())


def test_a_newcomer_without_a_place_takes_that_of_whom_the_policy_names() -> None:
    bench = Bench([4, 4], max_num_seqs=2, policy=displacing())
    bench.step()
    newcomer = bench.queue(3)
    assert bench.step() == {0: 1, newcomer: 3}
    assert bench.sequences[1].num_preemptions == 1
    assert bench.scheduler.roster.waiting.members() == [bench.sequences[1]]


def test_a_newcomer_without_blocks_gets_those_of_as_many_as_it_takes() -> None:
    bench = Bench([4, 4, 4], num_blocks=7, policy=displacing())
    bench.step()
    newcomer = bench.queue(19)
    assert bench.step() == {0: 1, newcomer: 19}
    assert bench.scheduler.roster.totals.num_preemptions == 2


def test_nobody_gives_way_when_that_would_not_be_enough() -> None:
    bench = Bench([4, 4, 18], num_blocks=9, policy=displacing())
    bench.scheduler.schedule(bench.now)  # nobody has sampled: nobody may go
    for sequence in bench.sequences[:2]:
        sequence.num_computed_tokens = 4
        sequence.token_ids.append(7)
    newcomer = bench.queue(30, arrival=-1.0)
    assert bench.step() == {0: 1, 1: 1, 2: 18}, "9 blocks less the 5 of one that hasn't sampled yet are not 8"
    assert bench.sequences[newcomer].num_preemptions == bench.scheduler.roster.totals.num_preemptions == 0


def test_nobody_passes_a_newcomer_for_whom_blocks_were_freed() -> None:
    bench = Bench([], num_blocks=9, policy=displacing())
    bench.add(make_request(16, sampling={"n": 2}))
    assert bench.step() == {0: 16, 1: 4}, "5 and 5 blocks, of which they share 3"
    newcomer = bench.queue(23, arrival=-1.0)
    bench.queue(1)
    assert bench.step() == {0: 1}, "one gave way, and less became free than it had"
    assert bench.step() == {newcomer: 23}


def test_who_has_had_no_token_since_it_was_admitted_does_not_give_way() -> None:
    bench = Bench([4, 9], budget=8, max_num_seqs=2, policy=displacing())
    assert bench.step() == {0: 4, 1: 4}
    newcomer = bench.queue(3)
    assert bench.step() == {1: 5, newcomer: 3}, "the last admitted is still in its prompt: the other goes"
    assert bench.step() == {1: 1, 0: 5}, "and displaces the next, now that that has had a token"
    assert bench.sequences[newcomer].num_preemptions == 1


def test_a_policy_may_let_the_newcomer_wait() -> None:
    bench = Bench([4, 4], max_num_seqs=1)
    assert bench.steps(3) == [{0: 4}, {0: 1}, {0: 1}]


def test_a_victim_that_may_not_go_is_no_victim() -> None:
    class Stubborn(Policy):
        def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
            return newcomer

    bench = Bench([4, 4], max_num_seqs=1, policy=Stubborn(SchedulerConfig()))
    assert bench.steps(3) == [{0: 4}, {0: 1}, {0: 1}]


def test_each_displacement_is_paid_for_with_a_token() -> None:
    bench = Bench([5] * 6, max_num_seqs=2, policy=displacing())
    for _ in range(200):
        bench.step()
        for sequence in bench.sequences:
            if sequence.num_output_tokens >= 5:
                bench.scheduler.roster.remove(sequence)
        if not bench.scheduler.roster.has_work:
            break
    totals = bench.scheduler.roster.totals
    assert not bench.scheduler.roster.has_work
    assert 0 < totals.num_preemptions <= sum(sequence.num_output_tokens for sequence in bench.sequences) == 30


# The budget, between those that are in their prompts.


class ByPriority(Policy):
    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.priority,)


def test_a_newcomer_that_goes_first_takes_the_budget_from_long_prompts() -> None:
    bench = Bench([40, 40], budget=10, policy=ByPriority(SchedulerConfig()))
    assert bench.step() == {0: 10}
    urgent = bench.queue(7, priority=-1)
    assert bench.step() == {0: 1 + 2, urgent: 7}, "what it doesn't need goes back, and to no one that goes later"
    long = bench.queue(30, priority=-1)
    assert bench.step() == {0: 1, urgent: 1, long: 8}
    assert bench.step() == {0: 1, urgent: 1, long: 8}, "the same in the next step, in which it runs already"


@pytest.mark.parametrize("bypass_seconds", [0.0, 5.0])
def test_a_newcomer_that_finds_no_blocks_takes_no_budget_either(bypass_seconds: float) -> None:
    policy = ByPriority(SchedulerConfig())
    bench = Bench([40], budget=10, num_blocks=20, bypass_seconds=bypass_seconds, policy=policy)
    bench.step()
    bench.queue(60, priority=-1)
    bench.queue(3, priority=1)
    assert bench.step() == {0: 10}, "nor does one that would pass it"


def test_a_newcomer_that_goes_later_waits_for_what_is_left() -> None:
    bench = Bench([25, 10], budget=10)
    assert bench.steps(4) == [{0: 10}, {0: 10}, {0: 5, 1: 5}, {0: 1, 1: 5}]


# What changes while it runs.


def test_fewer_places_admit_nobody_until_so_many_run() -> None:
    bench = Bench([2, 2, 2])
    bench.step()
    waiting = bench.queue(2)
    bench.configure(max_num_seqs=2)
    assert bench.step() == {0: 1, 1: 1, 2: 1}
    bench.finish(0)
    assert bench.step() == {1: 1, 2: 1}
    bench.finish(1)
    assert bench.step() == {2: 1, waiting: 2}


def test_a_budget_below_the_number_of_the_running_preempts_the_excess() -> None:
    bench = Bench([2, 2, 2, 2])
    bench.step()
    bench.configure(max_num_batched_tokens=2)
    assert bench.step() == {0: 1, 1: 1}
    assert [sequence.num_tokens for sequence in bench.sequences] == [4, 4, 3, 3]
    bench.configure(max_num_batched_tokens=100)
    assert bench.step() == {0: 1, 1: 1, 2: 3, 3: 3}


def test_another_policy_orders_those_that_wait_already() -> None:
    bench = Bench([2], max_num_seqs=1)
    bench.step()
    low, high = bench.queue(2, priority=5), bench.queue(2, priority=1)
    assert bench.scheduler.roster.waiting.head() is bench.sequences[low]
    bench.scheduler.configure(bench.config, ByPriority(bench.config))
    assert bench.scheduler.roster.waiting.head() is bench.sequences[high]
    bench.finish(0)
    assert bench.step() == {high: 2}


class Listening(Policy):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.heard: list[tuple[str, int]] = []

    def queued(self, sequence: Sequence) -> None:
        self.heard.append(("queued", sequence.seq_id))

    def admitted(self, sequence: Sequence) -> None:
        self.heard.append(("admitted", sequence.seq_id))

    def left(self, sequence: Sequence) -> None:
        self.heard.append(("left", sequence.seq_id))


def test_a_policy_hears_of_every_move() -> None:
    policy = Listening()
    bench = Bench([4, 4], num_blocks=4, policy=policy)
    bench.steps(6)
    bench.finish(0)
    bench.finish(0)
    bench.step()
    bench.finish(1)
    both = [("queued", 0), ("queued", 1), ("admitted", 0), ("admitted", 1)]
    assert policy.heard == [*both, ("queued", 1), ("left", 0), ("admitted", 1), ("left", 1)]


def test_a_new_policy_hears_of_all_that_is_there() -> None:
    bench = Bench([4, 4, 4], max_num_seqs=2)
    bench.step()
    policy = Listening()
    bench.scheduler.configure(bench.config, policy)
    running = [("queued", 0), ("admitted", 0), ("queued", 1), ("admitted", 1)]
    assert policy.heard == [*running, ("queued", 2)]


def test_a_request_of_several_is_heard_of_as_its_sequences_queue() -> None:
    policy = Listening()
    bench = Bench([], policy=policy)
    bench.add(make_request(9, sampling={"n": 3}))
    bench.add(make_request(2))
    assert policy.heard == [("queued", 0), ("queued", 3)]
    bench.step()
    assert {move for move in policy.heard if move[0] == "queued"} == {("queued", seq_id) for seq_id in range(4)}
