"""An encoder's vectors are the same bits alone and beside any others, in any order, step, policy and on any number of threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from pagemill.embedding_config import EmbeddingConfig, Pooling
from pagemill.encoder_config import EncoderConfig
from pagemill.model_files import ModelFiles, inspect
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.encoder import EncoderEngine
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.model.encoder import EncoderRunner
from pagemill_server.model.load_encoder import load_encoder
from tests.server.computing import computing, needs_native
from tests.server.engine.same_answer.asked import Answers, Record, check_same
from tests.server.engine.same_answer.company import computing_on, run
from tests.server.tiny_bert import write_tiny_encoder

Loaded = dict[int, tuple[EncoderRunner, EngineLimits]]  # by threads
LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 40, 47, 48, 63, 64)
# In bfloat16 torch promises nothing.
DTYPES = {"kernels": "float32", "torch": "float32", "kernels in bfloat16": "bfloat16"}
COMPANIES: dict[str, tuple[int, dict[str, Any]]] = {  # threads, and the scheduler's settings
    "all at once": (1, {"max_num_batched_tokens": 4096}),
    "two at a time": (1, {"max_num_seqs": 2}),
    "in small steps": (1, {"max_num_batched_tokens": 1}),
    "two threads": (2, {"max_num_batched_tokens": 301}),
    "three threads": (3, {"max_num_batched_tokens": 97}),
    "by priority": (1, {"policy": "priority", "max_num_seqs": 5}),
    "fair": (2, {"policy": "fair", "max_num_seqs": 7}),
    "by deadline": (1, {"policy": "deadline", "max_num_batched_tokens": 100}),
}


def make_texts() -> list[AddRequest]:
    made = []
    for number in range(56):
        length = LENGTHS[number % len(LENGTHS)]
        ids = random.Random(number).choices(range(10, 100), k=length)
        who = {"client": f"client{number % 3}", "priority": number % 4}
        made.append(AddRequest(f"r{number:02}", tuple(ids), SamplingParams(), 0.0, pooling=True, **who))  # type: ignore[arg-type]
    return made


TEXTS = make_texts()


def load(
    files: ModelFiles, config: EncoderConfig, pooling: Pooling, threads: int, by: str
) -> tuple[EncoderRunner, EngineLimits]:
    with computing(native=by != "torch", threads=threads), computing_on(threads):
        runner, limits, _ = load_encoder(
            files,
            config,
            EmbeddingConfig(pooling, normalize=pooling != "max"),
            ModelOptions("tiny", ("tiny",), dtype=DTYPES[by], device="cpu", max_model_len=64),
            CacheConfig(),
            SchedulerConfig(),
            lambda done, total: None,
        )
    return runner, limits


@pytest.fixture(
    scope="module",
    params=[
        *((pooling, by) for by in ("kernels", "torch") for pooling in ("mean", "cls", "max")),
        pytest.param(("mean", "kernels in bfloat16"), marks=needs_native),
    ],
    ids=lambda param: f"{param[0]} by {param[1]}",
)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    files = inspect(write_tiny_encoder(tmp_path_factory.mktemp("encoder")))
    assert isinstance(files.config, EncoderConfig)
    pooling, by = request.param
    return {threads: load(files, files.config, pooling, threads, by) for threads in (1, 2, 3)}


@pytest.fixture(scope="module")
def alone(encoder: Loaded) -> Iterator[Answers]:
    answers: Answers = {}
    with computing_on(1):
        for text in TEXTS:
            record = Record()
            run(EncoderEngine(*encoder[1], SchedulerConfig()), [text], record.take)
            answers |= record.answers()
        yield answers


@pytest.mark.parametrize("name", COMPANIES)
def test_in_whatever_company(encoder: Loaded, alone: Answers, name: str) -> None:
    threads, settings = COMPANIES[name]
    engine, chance = EncoderEngine(*encoder[threads], SchedulerConfig(**settings)), random.Random(0)
    with computing_on(threads):
        for late in None, chance:
            record = Record()
            run(engine, TEXTS if late is None else chance.sample(TEXTS, len(TEXTS)), record.take, late=late)
            check_same(record.answers(), alone)
