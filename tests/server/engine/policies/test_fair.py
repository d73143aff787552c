"""Fairness with its proven bound, on the real engine: whatever two clients send, while both wait neither gets far ahead."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pagemill_server.engine.policies.counters import AWAY_KEPT
from pagemill_server.engine.policies.fair import Fair
from pagemill_server.engine.policies.guarded import Guarded
from tests.server.engine.policies.driving import Driven

LONGEST_PROMPT = 60
INPUT, OUTPUT = 1.0, 2.0  # SchedulerConfig's weights


class Clients:
    """Clients of whom more wait before each step than one step can start, and what each was served, counted from the steps."""

    def __init__(self, driven: Driven, send: dict[str, Callable[[], tuple[int, int]]], backlog: dict[str, int]) -> None:
        self.driven = driven
        self.served = dict.fromkeys(send, 0.0)
        self.history: list[dict[str, float]] = []
        self._send, self._backlog = send, backlog
        self._clients: list[str] = []  # by seq_id
        self._computed: Counter[int] = Counter()  # prompt tokens, by seq_id

    def step(self) -> None:
        waiting = Counter(s.request.client for s in self.driven.engine.scheduler.roster.waiting.members())
        for client, send in self._send.items():
            for _ in range(self._backlog[client] - waiting[client]):
                prompt, tokens = send()
                self.driven.add(f"{client}-{len(self._clients)}", prompt, tokens, client=client)
                self._clients.append(client)
        for entry in self.driven.step().sequences:
            request = self.driven.requests[f"{self._clients[entry.seq_id]}-{entry.seq_id}"]
            end = min(len(request.prompt_token_ids), entry.start + len(entry.token_ids))
            new = max(0, end - self._computed[entry.seq_id])
            self._computed[entry.seq_id] += new
            output = 0 if entry.sampling is None else 1
            self.served[request.client] += INPUT * new + OUTPUT * output
        self.history.append(dict(self.served))

    def gap(self, one: str, other: str, weight: float = 1.0) -> float:
        """The largest difference of their service over any span of time."""
        ahead = [0.0, *(served[one] / weight - served[other] for served in self.history)]
        return max(ahead) - min(ahead)


def modest(draw: random.Random) -> Callable[[], tuple[int, int]]:
    return lambda: (draw.randint(1, 6), draw.randint(1, 8))


def greedy(draw: random.Random) -> Callable[[], tuple[int, int]]:
    return lambda: (draw.randint(20, LONGEST_PROMPT), draw.randint(10, 60))


def two_clients(policy: str, seed: int, steps: int = 800, **config: Any) -> Clients:
    draw = random.Random(seed)
    driven = Driven(policy=policy, **config)
    clients = Clients(driven, {"modest": modest(draw), "greedy": greedy(draw)}, {"modest": 10, "greedy": 100})
    for _ in range(steps):
        clients.step()
    return clients


ROOMY = {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64}
TIGHT = {"num_blocks": 32, "max_num_seqs": 8, "max_num_batched_tokens": 16}  # chunks and preemptions


def bound(config: dict[str, int]) -> float:
    return 2 * max(INPUT * LONGEST_PROMPT, OUTPUT * 4 * config["num_blocks"])


@pytest.mark.parametrize("config", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("seed", range(3))
def test_two_backlogged_clients_stay_within_the_papers_bound(config: dict[str, int], seed: int) -> None:
    clients = two_clients("fair", seed, **config)
    assert clients.gap("modest", "greedy") <= bound(config)
    if config is TIGHT:
        assert clients.driven.engine.stats().num_preemptions > 0


def test_first_come_first_served_does_not() -> None:
    assert two_clients("fcfs", 0, **ROOMY).gap("modest", "greedy") > 3 * bound(ROOMY)


def test_twice_the_weight_is_twice_the_service() -> None:
    clients = two_clients("fair", 1, weights=(("modest", 2.0),), **ROOMY)
    assert clients.served["modest"] / clients.served["greedy"] == pytest.approx(2.0, rel=0.05)
    assert clients.gap("modest", "greedy", weight=2.0) <= bound(ROOMY)


def test_a_token_of_an_answer_counts_twice_one_of_a_prompt() -> None:
    driven = Driven(policy="fair", **ROOMY)
    send: dict[str, Callable[[], tuple[int, int]]] = {"reader": lambda: (40, 2), "writer": lambda: (2, 40)}
    clients = Clients(driven, send, {"reader": 10, "writer": 10})
    for _ in range(1500):
        clients.step()
    assert clients.served["reader"] == pytest.approx(clients.served["writer"], rel=0.05)


def test_a_client_alone_gets_everything_and_no_place_stays_free() -> None:
    draw = random.Random(0)
    alone = Driven(policy="fair", **ROOMY)
    clients = Clients(alone, {"only": modest(draw)}, {"only": 20})
    for _ in range(100):
        clients.step()
        sequences = alone.runner.steps[-1].sequences
        assert len(sequences) == ROOMY["max_num_seqs"]


def test_nobody_saves_up_while_away() -> None:
    draw = random.Random(0)
    driven = Driven(policy="fair", **ROOMY)
    clients = Clients(driven, {"steady": modest(draw)}, {"steady": 10})
    for _ in range(500):
        clients.step()
    assert clients.served["steady"] > 10 * bound(ROOMY)
    late = Clients(driven, {"steady": modest(draw), "late": modest(draw)}, {"steady": 10, "late": 10})
    late._clients = clients._clients
    for _ in range(500):
        late.step()
    assert late.gap("steady", "late") <= bound(ROOMY)


def test_a_key_is_one_client_whatever_users_it_names_and_its_users_share_it() -> None:
    draw = random.Random(0)
    driven = Driven(policy="fair", **ROOMY)
    crowd = [f"key1/{user}" for user in "abcdefgh"]
    send = {name: greedy(draw) for name in crowd} | {"key2": greedy(draw)}
    clients = Clients(driven, send, dict.fromkeys(send, 10))
    for _ in range(1500):
        clients.step()
    by_user = [clients.served[name] for name in crowd]
    assert sum(by_user) == pytest.approx(clients.served["key2"], rel=0.05)
    assert max(by_user) - min(by_user) <= bound(ROOMY)


def test_the_places_of_one_step_are_shared_too() -> None:
    driven = Driven(policy="fair", max_num_seqs=4)
    for client in ("first", "second"):
        for number in range(10):
            driven.add(f"{client}{number}", prompt=4, max_tokens=20, client=client)
    driven.step()
    running = driven.engine.scheduler.roster.running.values()
    assert Counter(s.request.client for s in running) == {"first": 2, "second": 2}


def test_the_last_admitted_of_whom_got_most_gives_way() -> None:
    driven = Driven(policy="fair", num_blocks=16, max_num_seqs=4)
    driven.add("much", prompt=30, max_tokens=30, client="greedy")
    driven.add("more", prompt=4, max_tokens=30, client="greedy")
    driven.step()
    driven.add("little", prompt=1, max_tokens=30, client="modest")
    driven.run()
    assert driven.engine.stats().num_preemptions > 0
    preempted = {name for name in driven.ended if driven.ended[name] - driven.first_token[name] > 29}
    assert preempted == {"more", "much"}, "first the last admitted of its client, then the other; never the modest one"


def test_nothing_is_kept_of_what_is_over_and_little_of_names_without_end() -> None:
    driven = Driven(policy="fair", num_blocks=4096, max_num_seqs=64)
    policy = driven.engine.scheduler.roster.policy
    assert isinstance(policy, Guarded)
    fair = policy.inner
    assert isinstance(fair, Fair)
    driven.add("resident", max_tokens=4000, client="resident")
    for number in range(3 * AWAY_KEPT):
        driven.add(f"r{number}", max_tokens=2, client=f"name{number}/of/mine")
        if number % 7 == 0:
            driven.engine.abort(f"r{number}")
        if number % 32 == 0:
            driven.step()
        assert len(fair.clients) <= AWAY_KEPT + 200
    driven.engine.abort_all()
    assert (fair._waiting, fair._owing, fair._users) == ({}, {}, {})
    assert fair.clients.idle
    assert len(fair.clients) == 0
