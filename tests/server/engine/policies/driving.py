"""A real engine on a clock of its own: each step takes a second of it. For policies, whose work shows over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, RequestOutput
from pagemill_server.engine.schedule import SchedulerOutput
from tests.server.engine.scripted import VOCAB, SlotRunner, answer, make_request

STEP = 1.0  # seconds


class Driven:
    """`config` is SchedulerConfig's; steps, requests by id, and what came of each."""

    def __init__(self, *, num_blocks: int = 64, block_size: int = 4, **config: Any) -> None:
        self.now = 0.0
        self.config = SchedulerConfig(**({"max_num_seqs": 4, "watermark": 0.0} | config))
        limits = EngineLimits(10_000_000, VOCAB, num_blocks, block_size)
        self.runner = SlotRunner(limits, self.config)
        self.runner.before = self._tick
        self.engine = Engine(self.runner, limits, self.config, clock=lambda: self.now, prefix_caching=False)
        self.requests: dict[str, AddRequest] = {}
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.first_token: dict[str, float] = {}  # when it came
        self.ended: dict[str, float] = {}

    def _tick(self) -> None:
        self.now += STEP

    def add(self, name: str, prompt: int = 4, max_tokens: int = 4, **fields: Any) -> None:
        request = make_request(prompt, max_tokens, request_id=name, arrival=self.now)
        self.requests[name] = request = replace(request, **fields)
        self.engine.add(request)

    def step(self) -> SchedulerOutput:
        before = len(self.runner.steps)
        for output in self.engine.step():
            name = output.request_id
            self.outputs.setdefault(name, []).append(output)
            if output.tokens:
                self.first_token.setdefault(name, self.now)
            if output.finish_reason is not None:
                self.ended[name] = self.now
        self.engine.scheduler.check_integrity()
        return self.runner.steps[before] if len(self.runner.steps) > before else SchedulerOutput((), 0)

    def run(self, until: Callable[[], bool] | None = None, most: int = 20_000) -> None:
        """To the end, or until something holds; every answer that ended by then is the right one."""
        for _ in range(most):
            if not self.engine.has_work or (until is not None and until()):
                break
            self.step()
        else:
            raise AssertionError(f"still busy after {most} steps")
        for name in self.ended:
            request = self.requests[name]
            tokens = [token.token_id for output in self.outputs[name] for token in output.tokens]
            assert tokens == answer(request.prompt_token_ids, request.sampling.max_tokens)

    def order(self) -> list[str]:
        """Requests by their first token."""
        return sorted(self.first_token, key=lambda name: self.first_token[name])
