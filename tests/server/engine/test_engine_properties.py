"""The engine under any order of requests, steps, aborts and failures; the books are checked after every operation."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput
from tests.server.engine.scripted import VOCAB, answer, make_engine, make_request, token_ids


class EngineMachine(RuleBasedStateMachine):
    """Each request must end exactly once, with the tokens that it would have had alone."""

    @initialize(
        num_blocks=st.integers(2, 8),
        block_size=st.integers(1, 4),
        budget=st.integers(1, 40),
        max_num_seqs=st.integers(2, 8),
        max_model_len=st.integers(4, 60),
    )
    def start(self, num_blocks: int, block_size: int, budget: int, max_num_seqs: int, max_model_len: int) -> None:
        self.engine, self.runner = make_engine(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
        )
        self.requests: dict[str, AddRequest] = {}
        self.outputs: dict[str, list[RequestOutput]] = {}

    @rule(lengths=st.lists(st.floats(0, 1), min_size=1, max_size=4), max_tokens=st.integers(1, 30))
    def add(self, lengths: list[float], max_tokens: int) -> None:
        """Several at once, so that they run together."""
        if self.engine.dead is None and self.engine.max_sequence_len >= 2:
            for length in lengths:
                self.add_one(length, max_tokens)

    def add_one(self, length: float, max_tokens: int) -> None:
        # Mostly short, so that several run and outgrow the pool. Numbered by this machine, not by the process: hypothesis
        # replays a run and must find it the same.
        number = len(self.requests)
        prompt = [(31 * number + i) % VOCAB for i in range(1 + int(length**3 * (self.engine.max_sequence_len - 2)))]
        request = make_request(prompt, max_tokens, request_id=f"r{number:03}")
        self.engine.add(request)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []

    @rule(number=st.integers(1, 6))
    def step(self, number: int) -> None:
        for _ in range(number):
            self.take(self.engine.step())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.take(self.engine.abort(data.draw(st.sampled_from(sorted(self.requests)))))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(self.requests)))
        plan = self.engine.scheduler.schedule(now=0.0)
        if plan.sequences:
            result = self.runner.run(plan)
            self.take(self.engine.abort(victim))
            self.take(self.engine.commit(plan, result))

    @precondition(lambda self: self.engine.has_work)
    @rule()
    def runner_raises(self) -> None:
        self.runner.raise_next = RuntimeError("told to")
        self.take(self.engine.step())
        assert (self.engine.dead is None) == (self.engine._consecutive_failures < 2)

    @precondition(lambda self: self.engine.scheduler.roster.running)
    @rule(data=st.data())
    def one_is_not_finite(self, data: st.DataObject) -> None:
        self.runner.not_finite = {data.draw(st.sampled_from(sorted(self.engine.scheduler.roster.running)))}

    @invariant()
    def books_add_up(self) -> None:
        self.engine.scheduler.check_integrity()
        stats = self.engine.stats()
        open_requests = [id for id, outputs in self.outputs.items() if not self.finished(outputs)]
        assert stats.num_running + stats.num_waiting == len(open_requests)
        assert self.engine.has_work == bool(open_requests)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step(1)
        self.books_add_up()
        assert not self.engine.has_work, "the engine makes no progress"
        assert self.engine.kv_cache.num_held == 0
        for request_id, request in self.requests.items():
            outputs = self.outputs[request_id]
            tokens, reason = token_ids(outputs), outputs[-1].finish_reason
            prompt = request.prompt_token_ids
            assert tokens == answer(prompt, len(tokens))
            if reason is FinishReason.LENGTH:
                assert len(tokens) == min(request.sampling.max_tokens, self.engine.max_sequence_len - len(prompt))

    def take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            so_far = self.outputs[output.request_id]
            assert not self.finished(so_far), "an output after the last"
            so_far.append(output)

    @staticmethod
    def finished(outputs: list[RequestOutput]) -> bool:
        return bool(outputs) and outputs[-1].finish_reason is not None


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngine = EngineMachine.TestCase
