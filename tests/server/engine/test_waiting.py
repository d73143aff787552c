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
    assert sum(map(len, queue._lanes.values())) < 100
    assert queue.head() is first
