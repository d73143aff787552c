"""The engine under any order of requests, steps, aborts, failures and changes; the books are checked after every operation.

The runner keeps what is really in each block of both tiers, and whose it is: a block that is lost, freed twice or shared between
salts shows as a wrong answer or in the books.
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput
from pagemill_server.engine.tier_costs import FixedCosts
from tests.server.engine import hostile
from tests.server.engine.scripted import answer, make_engine, make_request, next_token, token_ids

POLICIES = ("fcfs", "priority", "fair", "deadline", *hostile.NAMES)
MOST_STEPS = 20_000  # until everything has ended
MOST_OPEN = 40  # sequences


class EngineMachine(RuleBasedStateMachine):
    """Each sequence of each request must end exactly once, with the tokens that it would have had alone."""

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 4),
        num_host_blocks=st.sampled_from([0, 1, 10, 40, 100]),
        max_model_len=st.integers(4, 60),
        prefix_caching=st.sampled_from([True, True, False]),
        fetch=st.sampled_from([True, True, False]),
        watermark=st.sampled_from([0.0, 0.01, 0.3]),
        bypass_seconds=st.sampled_from([0.0, 5.0]),
        budget=st.integers(1, 40),
        max_num_seqs=st.integers(1, 8),
        policy=st.sampled_from(POLICIES),
        seed=st.integers(0, 10),
    )
    def start(self, fetch: bool, seed: int, budget: int, prefix_caching: bool, **settings: Any) -> None:
        self.now = 0.0
        self.prefix_caching = prefix_caching
        self.engine, self.runner = make_engine(
            clock=lambda: self.now,
            costs=FixedCosts(fetch=fetch),
            prefix_caching=prefix_caching,
            max_num_batched_tokens=budget,
            **settings,
        )
        random = Random(seed)
        self.runner.fetch_steps = lambda: random.randrange(4)
        self.tenants: dict[int, str] = {}
        self.runner.tenants = self.tenants
        self.requests: dict[str, AddRequest] = {}
        self.outputs: dict[tuple[str, int], list[RequestOutput]] = {}

    @rule(
        lengths=st.lists(st.floats(0, 1), min_size=1, max_size=4),
        max_tokens=st.integers(0, 30),
        family=st.integers(0, 2),
        salt=st.sampled_from(["", "", "", "a"]),
        client=st.sampled_from(["a", "b"]),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        kind=st.sampled_from(["plain", "plain", "plain", "pooling", "prompt_logprobs", "penalties"]),
    )
    def add(self, lengths: list[float], kind: str, **options: Any) -> None:
        """Several at once, so that they run together."""
        if self.engine.dead is None and self.engine.max_sequence_len >= 2:
            for length in lengths[: max(0, MOST_OPEN - self.engine.stats().num_waiting)]:
                self.add_one(length, kind, **options)

    def add_one(self, length: float, kind: str, max_tokens: int, family: int, salt: str, client: str, n: int) -> None:
        # Mostly short, so that several run and outgrow the pool. Numbered by this machine, not by the process: hypothesis
        # replays a run and must find it the same. Those of a family begin alike; every third goes its own way from the middle on.
        number = len(self.requests)
        prompt = [100 * family + i for i in range(1 + int(length**2 * (self.engine.max_sequence_len - 2)))]
        if number % 3 == 0:
            middle = len(prompt) // 2
            prompt[middle:] = [300 + (31 * number + i) % 700 for i in range(len(prompt) - middle)]
        sampling: dict[str, Any] = {"n": n}
        if kind == "prompt_logprobs":
            sampling["prompt_logprobs"] = 0
        if kind == "penalties":
            sampling["repetition_penalty"] = 1.5
        request = make_request(
            prompt,
            1 if kind == "pooling" else max_tokens,
            request_id=f"r{number:03}",
            arrival=self.now,
            sampling=sampling,
            cache_salt=salt,
            client=client,
            priority=number % 3 - 1,
            pooling=kind == "pooling",
        )
        self.engine.add(request)
        self.requests[request.request_id] = request
        for index, sequence in self.engine.scheduler.roster.requests[request.request_id].items():
            self.outputs[request.request_id, index] = []
            self.tenants[sequence.seq_id] = salt if self.prefix_caching else request.request_id

    @rule(number=st.integers(1, 6))
    def step(self, number: int) -> None:
        for _ in range(number):
            self.now += 0.5
            self.take(self.engine.step())

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), index=st.sampled_from([None, None, 0, 1, 2, 9]))
    def abort(self, data: st.DataObject, index: int | None) -> None:
        self.take(self.engine.abort(self.any_request(data), index))

    @precondition(lambda self: self.engine.scheduler.roster.fetching)
    @rule()
    def abort_what_is_being_fetched(self) -> None:
        sequence = self.engine.scheduler.roster.running[min(self.engine.scheduler.roster.fetching)]
        self.take(self.engine.abort(sequence.request.request_id, sequence.index))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), index=st.sampled_from([None, 0, 1]))
    def abort_while_a_step_runs(self, data: st.DataObject, index: int | None) -> None:
        victim = self.any_request(data)
        plan = self.engine.scheduler.schedule(now=self.now)
        result = self.engine._run(plan)
        self.take(self.engine.abort(victim, index))
        self.take(self.engine.commit(plan, result))

    @precondition(lambda self: self.engine.has_work)
    @rule()
    def runner_raises(self) -> None:
        self.runner.raise_next = RuntimeError("told to")
        self.take(self.engine.step())
        assert (self.engine.dead is None) == (self.engine._consecutive_failures < 2)
        self.step(1)

    @precondition(lambda self: self.engine.scheduler.roster.running)
    @rule(data=st.data())
    def one_is_not_finite(self, data: st.DataObject) -> None:
        self.runner.not_finite = {data.draw(st.sampled_from(sorted(self.engine.scheduler.roster.running)))}

    @rule(budget=st.integers(1, 40), max_num_seqs=st.integers(1, 8), policy=st.sampled_from(POLICIES))
    def configure(self, budget: int, max_num_seqs: int, policy: str) -> None:
        config = replace(self.engine.config, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, policy=policy)
        self.configured(config)

    def configured(self, config: SchedulerConfig) -> None:
        self.engine.configure(config)
        # Those who run beyond the new number of places go on running.
        most = max(config.max_num_seqs, len(self.engine.scheduler.roster.running))
        self.runner.config = replace(config, max_num_seqs=most)

    def any_request(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.requests)))

    @invariant()
    def books_add_up(self) -> None:
        self.engine.scheduler.check_integrity()
        stats = self.engine.stats()
        still_open = [key for key, outputs in self.outputs.items() if not finished(outputs)]
        assert stats.num_running + stats.num_waiting == len(still_open)
        assert stats.num_added == len(self.outputs)
        if self.engine.dead is None:
            assert self.engine.has_work == bool(still_open or self.runner.arriving)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(MOST_STEPS):
            if not self.engine.has_work:
                break
            self.step(1)
        self.books_add_up()
        assert not self.engine.has_work, "the engine makes no progress"
        assert self.engine.kv_cache.num_held == 0
        assert self.engine.dead is not None or self.engine.kv_cache.num_parked == 0
        for (request_id, index), outputs in self.outputs.items():
            self.check_answer(self.requests[request_id], index, outputs)

    def check_answer(self, request: AddRequest, index: int, outputs: list[RequestOutput]) -> None:
        prompt, tokens, last = request.prompt_token_ids, token_ids(outputs), outputs[-1]
        assert tokens == answer(prompt, len(tokens), index)
        told = [token for output in outputs for token in output.prompt_logprobs]
        assert [token.token_id for token in told] == list(prompt[1 : 1 + len(told)])
        assert [token.logprob for token in told] == [-float(position) for position in range(1, 1 + len(told))]
        assert sum(output.first_scheduled is not None for output in outputs) <= 1
        if request.pooling:
            assert last.finish_reason is not FinishReason.LENGTH
            assert (last.embedding == (float(next_token(prompt)),)) == (last.finish_reason is FinishReason.STOP)
        if last.finish_reason is FinishReason.LENGTH:
            assert len(tokens) == min(request.sampling.max_tokens, self.engine.max_sequence_len - len(prompt))
            if request.sampling.prompt_logprobs is not None and index == 0:
                assert len(told) == len(prompt) - 1

    def take(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            so_far = self.outputs[output.request_id, output.index]
            assert not finished(so_far), "an output after the last"
            so_far.append(output)


def finished(outputs: list[RequestOutput]) -> bool:
    return bool(outputs) and outputs[-1].finish_reason is not None


EngineMachine.TestCase.settings = settings(max_examples=110, stateful_step_count=100, deadline=None)
TestEngine = EngineMachine.TestCase
