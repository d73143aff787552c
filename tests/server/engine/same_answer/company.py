"""Models whose answers are compared, and the company in which a request is answered: one row of the table.

One engine after another uses the same tensors, with what earlier ones left in them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pagemill.model_files import ModelFiles, inspect
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.policies.deadline import Deadline
from pagemill_server.engine.ports import StepEngine
from pagemill_server.engine.request import AddRequest, EngineStats, RequestOutput
from pagemill_server.engine.sequence import Sequence as Waiting
from pagemill_server.engine.tier_costs import FixedCosts
from pagemill_server.model.load import load_runner
from pagemill_server.model.runner import Runner
from pagemill_server.text.grammar import GrammarCompiler
from pagemill_server.text.tokenizer import load_tokenizer
from tests.server.computing import computing, without_bfloat16
from tests.server.engine.same_answer.asked import Answers, Record, check_same, named

DISPLACING = "tests.server.engine.same_answer.company:Hurried"  # a policy under which much is preempted
BUDGETS = (1, 7, 64, 512)  # tokens in a step, for what changes while it runs


class Hurried(Deadline):
    """Whoever has no token yet takes the place of one that has, however late it is."""

    def _presses(self, newcomer: Waiting) -> bool:
        return not newcomer.num_output_tokens


@dataclass(frozen=True)
class LoadedModel:
    runner: Runner
    limits: EngineLimits
    on_threads: Callable[[int], LoadedModel]  # the same model on so many threads

    def engine(
        self,
        num_blocks: int | None = None,
        num_host_blocks: int = 0,
        *,
        prefix_caching: bool = False,
        fetch: bool = True,
        **config: Any,
    ) -> Engine:
        """`fetch`: what is in the host tier is brought from there; otherwise it is always computed again."""
        limits = replace(self.limits, num_blocks=num_blocks or self.limits.num_blocks, num_host_blocks=num_host_blocks)
        assert limits.num_blocks <= self.limits.num_blocks
        assert limits.num_host_blocks <= self.limits.num_host_blocks
        scheduler, costs = SchedulerConfig(**config), FixedCosts(fetch=fetch)
        return Engine(self.runner, limits, scheduler, prefix_caching=prefix_caching, costs=costs)


@contextmanager
def loaded(
    folder: Path,
    *,
    block_size: int = 16,
    memory_bytes: int = 12 << 20,
    offloading_bytes: int = 0,
    native: bool = True,
    bfloat16: bool = True,
    **options: Any,
) -> Iterator[LoadedModel]:
    """On one thread. `native`: by our kernels, where there are any; otherwise by torch. Without `bfloat16` `auto` is float32."""
    files = inspect(folder)
    made: dict[int, LoadedModel] = {}

    def on(threads: int) -> LoadedModel:
        if threads not in made:
            with computing(native=native, threads=threads), nullcontext() if bfloat16 else without_bfloat16():
                runner, limits, _ = load_runner(
                    files,
                    ModelOptions(str(folder), ("test",), **({"dtype": "float32", "device": "cpu"} | options)),
                    CacheConfig(block_size=block_size, memory_bytes=memory_bytes, offloading_bytes=offloading_bytes),
                    SchedulerConfig(),
                    lambda done, total: None,
                    grammars=grammars_of(files),
                )
            made[threads] = LoadedModel(runner, limits, on)
        return made[threads]

    try:
        model = on(1)
        with computing_on(1):
            yield model
    finally:
        for each in made.values():
            each.runner.close()
        made.clear()  # each knows of it, and would keep the others


def grammars_of(files: ModelFiles) -> GrammarCompiler:
    tokenizer = load_tokenizer(files)
    return GrammarCompiler(tokenizer.backend, tokenizer.eos_ids, files.config.vocab_size)


@contextmanager
def computing_on(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def answers_alone(model: LoadedModel, requests: Iterable[AddRequest]) -> Answers:
    """Each request by itself, on an engine that has seen no other."""
    answers: Answers = {}
    for request in requests:
        record = Record()
        run(model.engine(), [request], record.take)
        answers |= record.answers()
    return answers


def run(
    engine: StepEngine,
    requests: Sequence[AddRequest],
    take: Callable[[list[RequestOutput]], None],
    *,
    late: random.Random | None = None,
    between: Callable[[], None] = lambda: None,
) -> None:
    """To the end; `take` gets what each step brings. `late`: they come a few at a time while others run. `between` is called
    before each step."""
    waiting = list(reversed(requests))
    while waiting or engine.has_work:
        for _ in range(len(waiting) if late is None else min(len(waiting), late.choice((0, 0, 1, 5)))):
            engine.add(waiting.pop())
        between()
        take(engine.step())


@dataclass(frozen=True)
class Company:
    """How the requests are answered, and what must have happened on the way for that to mean something."""

    engine: dict[str, Any] = field(default_factory=dict)  # arguments of LoadedModel.engine
    order: int | None = None  # seed of their order and of when each comes; None: all at once, in theirs
    rounds: int = 1  # how often all of them are asked, on one engine
    threads: int = 1
    changes: bool = False  # policy, places and budget change every few steps
    shows: Callable[[EngineStats], bool] = lambda stats: True

    def check(self, model: LoadedModel, requests: Sequence[AddRequest], expected: Answers) -> None:
        with computing_on(self.threads):  # a model that is loaded sets torch's threads too
            engine, chance = model.on_threads(self.threads).engine(**self.engine), random.Random(self.order)
        with computing_on(self.threads):
            for number in range(self.rounds):
                asked = requests if self.order is None else chance.sample(requests, len(requests))
                record = Record()
                run(
                    engine,
                    named(asked, f" {number}"),
                    record.take,
                    late=None if self.order is None else chance,
                    between=_changes(engine) if self.changes else lambda: None,
                )
                check_same(record.answers(), expected)
        engine.kv_cache.check_integrity()
        assert self.shows(engine.stats()), engine.stats()


def _changes(engine: Engine) -> Callable[[], None]:
    chance = random.Random(0)

    def change() -> None:
        if chance.random() < 0.2:
            engine.configure(
                replace(
                    engine.config,
                    policy=chance.choice(("fcfs", "priority", "fair", "deadline")),
                    max_num_seqs=chance.choice((2, 5, 64)),
                    max_num_batched_tokens=chance.choice(BUDGETS),
                )
            )

    return change
