"""What happens to others changes no bit of an answer: twins, aborts, values that are not finite, failing steps, other chunking."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemill_server.engine.commit import NOT_FINITE
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.model.batch import InputBatch
from tests.server.computing import needs_native
from tests.server.engine.same_answer.asked import Answers, Record, check_same, make_requests, named
from tests.server.engine.same_answer.company import DISPLACING, LoadedModel, answers_alone, loaded, run
from tests.server.tiny import write_tiny_llama

REQUESTS = make_requests(30, longest=192)
SICK = 263  # a token whose embedding is not finite; no prompt of the above has it, but one or two draw it
ENGINES = {
    "plain": {},
    "caching": {"prefix_caching": True},
    "in small chunks": {"prefix_caching": True, "max_num_batched_tokens": 23},
    "swapping": {"num_blocks": 24, "num_host_blocks": 200, "policy": DISPLACING, "max_num_seqs": 5},
    "caching and swapping": {
        "num_blocks": 24, "num_host_blocks": 200, "policy": DISPLACING, "max_num_seqs": 5, "prefix_caching": True,
    },
}  # fmt: skip


@pytest.fixture(params=[pytest.param(True, marks=needs_native), False], ids=["native", "torch"], scope="module")
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    folder = write_tiny_llama(
        tmp_path_factory.mktemp("tiny"),
        max_position_embeddings=512,
        num_key_value_heads=1,
        intermediate_size=1568,
        tie_word_embeddings=False,
    )
    make_sick(folder)
    with loaded(folder, memory_bytes=4 << 20, offloading_bytes=1 << 20, native=request.param) as model:
        yield model


def make_sick(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][SICK] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def alone(tiny: LoadedModel) -> Answers:
    return answers_alone(tiny, REQUESTS)


@pytest.fixture(params=ENGINES)
def engine(tiny: LoadedModel, request: pytest.FixtureRequest) -> Engine:
    return tiny.engine(**ENGINES[request.param])  # type: ignore[arg-type]


def test_twins_are_answered_alike(engine: Engine, alone: Answers) -> None:
    """The same asked three times at once."""
    requests = [twin for request in REQUESTS for name in "abc" for twin in named([request], f" {name}")]
    records = {name: Record() for name in "abc"}

    def take(outputs: list[RequestOutput]) -> None:
        for output in outputs:
            records[output.request_id[-1]].take([output])

    run(engine, requests, take)
    for record in records.values():
        check_same(record.answers(), alone)


def test_the_first_of_several_answers_is_the_only_one_of_one(tiny: LoadedModel, alone: Answers) -> None:
    several = [request for request in REQUESTS if request.sampling.n > 1 and not request.pooling]
    assert len(several) > 3
    ones = [replace(request, sampling=replace(request.sampling, n=1)) for request in several]
    check_same(answers_alone(tiny, ones), {(one.request_id, 0): alone[one.request_id, 0] for one in ones})


@pytest.mark.parametrize(("first", "then"), [(7, 512), (512, 7), (64, 61), (5, 250)])
def test_blocks_that_were_computed_in_other_chunks(tiny: LoadedModel, alone: Answers, first: int, then: int) -> None:
    engine = tiny.engine(prefix_caching=True, max_num_batched_tokens=first)
    for budget, suffix in (first, " first"), (then, " then"):
        engine.configure(replace(engine.config, max_num_batched_tokens=budget))
        record = Record()
        run(engine, named(REQUESTS, suffix), record.take)
        check_same(record.answers(), alone)
    assert engine.stats().prefix_cache_hits > 1000


def test_aborted_neighbours(engine: Engine, alone: Answers) -> None:
    """A third is aborted while it waits, is fetched, is computed or generates; some are the only ones of several answers."""
    chance = random.Random(0)
    leaving = [request.request_id for request in chance.sample(REQUESTS, len(REQUESTS) // 3)]
    record, aborted = Record(), list(leaving)

    def abort() -> None:
        if leaving and chance.random() < 0.4:
            record.take(engine.abort(leaving.pop(), None))

    run(engine, REQUESTS, record.take, late=chance, between=abort)
    left = {key: answer for key, answer in record.answers(FinishReason.ABORT).items() if key[0] not in aborted}
    check_same(left, {key: answer for key, answer in alone.items() if key[0] not in aborted})
    again = Record()
    run(engine, named(REQUESTS, " again"), again.take)
    check_same(again.answers(), alone)


def sick_requests() -> list[AddRequest]:
    """Beginnings that others have too, then the sick token, in the middle or at the end."""
    made = []
    for number, request in enumerate(REQUESTS[1::3]):
        prompt = (*request.prompt_token_ids, SICK, *request.prompt_token_ids[: number % 2 * 20])
        made.append(replace(request, request_id=f"sick{number}", prompt_token_ids=prompt))
    return made


@pytest.mark.parametrize("mixed", [False, True])
def test_neighbours_whose_values_are_not_finite(engine: Engine, alone: Answers, mixed: bool) -> None:
    """They alone fail, beside the others or before them, when their blocks are what the others get next."""
    sick, record, chance = sick_requests(), Record(), random.Random(1)
    failed: list[RequestOutput] = []

    def take(outputs: list[RequestOutput]) -> None:
        failed.extend(output for output in outputs if output.finish_reason is FinishReason.ERROR)
        record.take(output for output in outputs if not output.request_id.startswith("sick"))

    together = [*sick, *REQUESTS]
    if mixed:
        chance.shuffle(together)
    run(engine, together, take, late=chance if mixed else None)
    check_same(record.answers(), alone)
    drew_it = {name for (name, _), parts in alone.items() if parts[-1][0] is FinishReason.ERROR}
    assert {output.request_id for output in failed} == {request.request_id for request in sick} | drew_it
    assert {output.error for output in failed} == {NOT_FINITE}


def test_after_a_step_that_failed(
    tiny: LoadedModel, engine: Engine, alone: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs in it gets an error, once its keys and values are written. Whoever comes later is answered as ever."""
    sample, steps, failures = tiny.runner._sample, count(1), []

    def upset(hidden: torch.Tensor, batch: InputBatch, output: SchedulerOutput) -> RunnerOutput:
        if next(steps) % 7 == 0:
            failures.append(len(batch.sampled))
            raise RuntimeError("the device is upset")
        return sample(hidden, batch, output)

    monkeypatch.setattr(tiny.runner, "_sample", upset)
    record = Record()
    run(engine, REQUESTS, record.take, late=random.Random(2))
    assert len(failures) > 1
    done = record.answers(FinishReason.ERROR)
    assert 0 < len(done) < len(alone)
    check_same(done, {key: alone[key] for key in done})
    monkeypatch.undo()
    again = Record()
    run(engine, named(REQUESTS, " again"), again.take)
    check_same(again.answers(), alone)
