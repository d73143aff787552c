from collections import defaultdict
from collections.abc import Hashable
from random import Random

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.waiting import WaitingQueue
from tests.server.engine.scripted import make_request


def make_sequence(seq_id: int, arrival: float = 0.0, num_preemptions: int = 0) -> Sequence:
    return Sequence(seq_id, make_request(1, arrival=arrival), seed=0, num_preemptions=num_preemptions)


def drain(queue: WaitingQueue) -> list[int]:
    drained = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        drained.append(head.seq_id)
    return drained


def test_the_policy_orders_then_the_preempted_then_the_order_of_arrival() -> None:
    queue = WaitingQueue(Policy(SchedulerConfig()))
    for sequence in [
        make_sequence(3, arrival=2.0),
        make_sequence(0, arrival=2.0),
        make_sequence(4, arrival=2.0, num_preemptions=1),
        make_sequence(1, arrival=1.0),
        make_sequence(2, arrival=3.0, num_preemptions=5),
    ]:
        queue.push(sequence)
    assert drain(queue) == [1, 4, 0, 3, 2]


def test_who_leaves_is_never_the_head() -> None:
    queue = WaitingQueue(Policy(SchedulerConfig()))
    sequences = [make_sequence(i) for i in range(5)]
    for sequence in sequences:
        queue.push(sequence)
    queue.remove(sequences[0])
    queue.remove(sequences[3])
    queue.remove(sequences[3])
    assert len(queue) == 3
    assert sequences[3] not in queue
    assert queue.head() is sequences[1]
    assert drain(queue) == [1, 2, 4]
    assert queue.head() is None


def test_a_thousand_that_left_are_not_kept_behind_one_that_waits() -> None:
    queue = WaitingQueue(Policy(SchedulerConfig()))
    first = make_sequence(0)
    queue.push(first)
    for seq_id in range(1, 1001):
        sequence = make_sequence(seq_id)
        queue.push(sequence)
        queue.remove(sequence)
    assert sum(len(lane.entries) for lane in queue._lanes.values()) < 100
    assert queue.head() is first


def test_who_left_and_came_back_stands_in_its_new_place() -> None:
    queue = WaitingQueue(Policy(SchedulerConfig()))
    first, second = make_sequence(0), make_sequence(1)
    for sequence in (first, second, make_sequence(2)):
        queue.push(sequence)
    queue.remove(second)
    second.num_preemptions += 1
    queue.push(second)
    assert drain(queue) == [1, 0, 2]


def test_the_first_in_order_without_taking_them() -> None:
    queue = WaitingQueue(Policy(SchedulerConfig()))
    sequences = [make_sequence(i, arrival=float(7 * i % 10)) for i in range(10)]
    for sequence in sequences:
        queue.push(sequence)
    queue.remove(sequences[3])  # arrival 1.0
    assert [int(sequence.request.arrival) for sequence in queue.first(4)] == [0, 2, 3, 4]
    assert len(queue.first(100)) == len(queue) == 9
    assert queue.first(1) == queue.first(1)


def test_the_tokens_that_wait_are_known() -> None:
    queue = WaitingQueue(Policy(SchedulerConfig()))
    sequences = [Sequence(i, make_request(10 + i), seed=0) for i in range(3)]
    for sequence in sequences:
        queue.push(sequence)
    queue.remove(sequences[1])
    queue.remove(sequences[1])
    assert queue.num_tokens == 22


class Served(Policy):
    """A lane a client; the client that was served least goes first, as far as anybody knows by now."""

    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.served = {"a": 0.0, "b": 0.0, "c": 0.0}
        self.asked = 0

    def lane(self, sequence: Sequence) -> Hashable:
        return sequence.request.client

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        self.asked += 1
        return (self.served[sequence.request.client],)


def test_what_a_policy_counts_of_a_lane_moves_the_whole_lane() -> None:
    policy = Served()
    queue = WaitingQueue(policy)
    for seq_id, client in enumerate("aaabbc"):
        queue.push(Sequence(seq_id, make_request(1, client=client), seed=0))
    order = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        order.append(head.request.client + str(head.seq_id))
        policy.served[head.request.client] += 2 if head.request.client == "a" else 1
    assert order == ["a0", "b3", "c5", "b4", "a1", "a2"]


def test_the_first_of_several_lanes_come_in_the_order_of_their_turns() -> None:
    policy = Served()
    queue = WaitingQueue(policy)
    for seq_id, client in enumerate("aabbc"):
        queue.push(Sequence(seq_id, make_request(1, client=client), seed=0))
    policy.served.update(a=2.0, b=1.0, c=3.0)
    assert [sequence.seq_id for sequence in queue.first(5)] == [2, 3, 0, 1, 4]


def test_one_lane_costs_no_question() -> None:
    policy = Served()
    queue = WaitingQueue(policy)
    for seq_id in range(5):
        queue.push(Sequence(seq_id, make_request(1, client="a"), seed=0))
    assert [sequence.seq_id for sequence in queue.first(3)] == [0, 1, 2]
    assert policy.asked == 0


def test_random_comings_and_goings_keep_the_order() -> None:
    random = Random(0)
    queue = WaitingQueue(Policy(SchedulerConfig()))
    waiting: dict[int, Sequence] = {}
    for step in range(3000):
        if random.random() < 0.5 or not waiting:
            sequence = make_sequence(step, arrival=random.randrange(20), num_preemptions=random.randrange(2))
            waiting[step] = sequence
            queue.push(sequence)
        else:
            queue.remove(waiting.pop(random.choice(list(waiting))))
        expected = sorted(waiting.values(), key=queue.turn)
        assert queue.first(5) == expected[:5]
        assert len(queue) == len(waiting)


class Grouped(Policy):
    """Clients with users, each of the two with a counter: what is charged to a client moves all of its users at once."""

    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.served: dict[str, float] = defaultdict(float)
        self.repaid: list[Sequence] = []
        self.asked = 0

    def lane(self, sequence: Sequence) -> Hashable:
        return sequence.request.client

    def group(self, sequence: Sequence) -> Hashable:
        return sequence.request.client[0]

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        self.asked += 1
        client = sequence.request.client
        return (self.served[client[0]], self.served[client], sequence.request.arrival)

    def fallen(self) -> list[Sequence]:
        repaid, self.repaid = self.repaid, []
        return repaid

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        for name in (sequence.request.client[0], sequence.request.client):
            self.served[name] += prompt_tokens
        if prompt_tokens < 0:
            self.repaid.append(sequence)


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_lanes_come_in_the_order_of_their_turns_whatever_is_charged_and_repaid(seed: int) -> None:
    random = Random(seed)
    policy = Grouped()
    queue = WaitingQueue(policy)
    known: list[Sequence] = []
    waiting: dict[int, Sequence] = {}
    for step in range(1500):
        move = random.random()
        if move < 0.3 or not known:
            client = random.choice("abc") + random.choice("12345")
            sequence = Sequence(step, make_request(1, client=client, arrival=float(step // 3)), seed=0)
            known.append(sequence)
            waiting[step] = sequence
            queue.push(sequence)
        elif move < 0.55:
            policy.charge(random.choice(known), random.choice([-5, -1, 1, 2, 3, 10]), 0)
        elif waiting:
            taken = random.choice([queue.head(), *waiting.values()])
            assert taken is not None
            del waiting[taken.seq_id]
            queue.remove(taken)
            if move < 0.7:
                taken.num_preemptions += 1
                waiting[taken.seq_id] = taken
                queue.push(taken)
        expected = sorted(waiting.values(), key=queue.turn)
        number = random.choice([1, 1, 9])
        assert queue.first(number) == expected[:number]
        assert queue.head() is (expected[0] if expected else None)
        assert len(queue) == len(waiting)


@pytest.mark.parametrize("names", [[f"{i:04}" for i in range(1000)], [f"a{i}" for i in range(1000)]])
def test_a_thousand_clients_that_wait_or_users_of_one_are_not_asked_at_each_look(names: list[str]) -> None:
    policy = Grouped()
    queue = WaitingQueue(policy)
    for seq_id, client in enumerate(names):
        queue.push(Sequence(seq_id, make_request(1, client=client), seed=0))
    running = Sequence(10**6, make_request(1, client=names[0]), seed=0)
    queue.head()
    policy.asked = 0
    for _ in range(100):
        policy.charge(running, 1, 0)
        assert len(queue.first(9)) == 9
    assert policy.asked < 100 * 100


def test_nothing_is_kept_of_lanes_that_are_empty() -> None:
    queue = WaitingQueue(Grouped())
    for seq_id in range(1000):
        sequence = Sequence(seq_id, make_request(1, client=f"{seq_id % 10}{seq_id}"), seed=0)
        queue.push(sequence)
        if seq_id % 3:
            queue.head()
        queue.remove(sequence)
    assert queue.head() is None
    assert (queue._lanes, queue._groups, queue._news, len(queue._in_order)) == ({}, {}, {}, 0)
    assert len(queue._in_order._heap) < 100
