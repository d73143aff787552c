"""Whatever a policy raises or answers, the base class's answer takes its place, and the log says so once a hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.policies.guarded import Guarded
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request


class Answering(Policy):
    """Each hook does what it is told to."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        super().__init__(SchedulerConfig())
        self.answer = answer

    def lane(self, sequence: Sequence) -> Any:
        return self.answer()

    key = turn = group = lane

    def fallen(self) -> Any:
        return self.answer()

    def victim(self, running: Any, newcomer: Sequence | None) -> Any:
        return self.answer()

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> Any:
        return self.answer()

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        self.answer()

    queued = admitted = left = lane


def raises(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


SEQUENCES = [Sequence(i, make_request(1, arrival=float(i)), seed=0) for i in range(3)]


def all_answers(policy: Policy) -> list[Any]:
    first, *running = SEQUENCES
    policy.queued(first)
    policy.admitted(first)
    policy.charge(first, 1, 1)
    policy.left(first)
    return [
        policy.lane(first),
        policy.group(first),
        policy.fallen(),
        policy.key(first),
        policy.turn(first),
        policy.victim(running, None),
        policy.victim(running, first),
        policy.admit(first, 1, 0),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        raises(ValueError("told to")),
        raises(SystemExit(1)),
        raises(RecursionError()),
        lambda: [1],  # unhashable, no tuple, no sequence, no bool
        lambda: {float("nan")}.__iter__,
    ],
)
def test_first_come_first_served_answers_in_its_place(answer: Callable[[], Any]) -> None:
    expected = all_answers(Policy(SchedulerConfig()))
    answers = all_answers(Guarded(Answering(answer)))
    assert answers[2:] == expected[2:]  # any hashable is a lane or a group


@pytest.mark.parametrize(
    "key", [None, 5, [1.0], (float("nan"),), (1.0, float("nan")), ("a",), (None,), (10**400,), ((1,),)]
)
def test_a_key_that_has_no_place_in_an_order_is_not_taken(key: Any) -> None:
    guarded = Guarded(Answering(lambda: key))
    assert guarded.key(SEQUENCES[1]) == guarded.turn(SEQUENCES[1]) == (1.0,)


def test_right_answers_pass() -> None:
    assert Guarded(Answering(lambda: "lane")).lane(SEQUENCES[0]) == "lane"
    assert Guarded(Answering(lambda: (1, True, float("inf")))).key(SEQUENCES[0]) == (1.0, 1.0, float("inf"))
    assert Guarded(Answering(lambda: False)).admit(SEQUENCES[0], 1, 1) is False
    assert Guarded(Answering(lambda: SEQUENCES[1])).victim(SEQUENCES, None) is SEQUENCES[1]
    assert Guarded(Answering(lambda: None)).victim(SEQUENCES, None) is None
    assert Guarded(Answering(lambda: {1: SEQUENCES[1]}.values())).fallen() == (SEQUENCES[1],)
    assert Guarded(Answering(lambda: ())).fallen() == ()


def test_each_hook_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    guarded = Guarded(Answering(raises(ValueError("told to"))))
    for _ in range(3):
        all_answers(guarded)
    told = [record.getMessage() for record in caplog.records]
    hooks = ["queued", "admitted", "charge", "left", "lane", "group", "fallen", "key", "turn", "victim", "admit"]
    assert [next(hook for hook in hooks if f"`{hook}`" in line) for line in told] == hooks
    assert all("Answering" in line for line in told)
    assert "told to" in caplog.text


def test_an_interrupt_of_the_program_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        Guarded(Answering(raises(KeyboardInterrupt()))).admit(SEQUENCES[0], 1, 1)
