"""Right answers: the real model's greedy tokens through HTTP are transformers' own, one by one, alone and in company."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pagemill_server.api.logprobs import token_name
from pagemill_server.config import SchedulerConfig
from tests.server.api.running import Running, serving, settings_for
from tests.server.real_model import greedy_after, real_model

pytestmark = pytest.mark.model

MAX_TOKENS = 16
STORY = "Once there was a mill by a river, and the miller had 3 sons and 12 cats. "
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "2, 4, 8, 16, 32,",
    "1234567890 times 7 is",
    "Water boils at 100 degrees",
    "The quick brown fox",
    "Die Hauptstadt von Deutschland ist",
    "La capitale de l'Italie est",
    "东京是",
    "Привет, как",
    "🙂 means",
    "SELECT name FROM users WHERE",
    '{"name": "Alice", "age": ',
    "<html>\n<body>\n",
    "To be, or not to be,",
    "A",
    "   ",
    "\n\n\n",
    "E = mc",
    "Roses are red,\nviolets are",
    "The three primary colours are",
    STORY * 3,
    STORY * 15,  # more tokens than one step computes: the prompt goes through in chunks
]


@dataclass(frozen=True)
class Answer:
    ids: tuple[int, ...]
    text: str
    finish_reason: str


@pytest.fixture(scope="module")
def real() -> Iterator[Running]:
    files = real_model()
    settings = settings_for(files.path, memory_bytes=512 << 20)
    settings = replace(settings, scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=128))
    with serving(files.path, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def ids_by_name(real: Running) -> dict[str, int]:
    assert real.model.generator is not None
    vocabulary = real.model.generator.vocabulary
    return {token_name(vocabulary, i): i for i in reversed(range(real.model.limits.vocab_size))}


def ask(server: Running, prompt: str, names: dict[str, int]) -> Answer:
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "max_tokens": MAX_TOKENS, "logprobs": 0}
    with server.client() as client:
        choice = client.post("/v1/completions", json=body).json()["choices"][0]
    return Answer(tuple(names[name] for name in choice["logprobs"]["tokens"]), choice["text"], choice["finish_reason"])


@pytest.fixture(scope="module")
def alone(real: Running, ids_by_name: dict[str, int]) -> list[Answer]:
    return [ask(real, prompt, ids_by_name) for prompt in PROMPTS]


def test_alone_they_are_transformers_tokens(real: Running, alone: list[Answer]) -> None:
    tokenizer = real.model.tokenizer
    for prompt, answer in zip(PROMPTS, alone, strict=True):
        expected = greedy_after(tokenizer.encode(prompt), answer.ids)
        assert list(answer.ids) == expected[:-1], prompt
        if answer.finish_reason == "stop":
            assert expected[-1] in tokenizer.eos_ids
        else:
            assert len(answer.ids) == MAX_TOKENS
        assert answer.text == tokenizer.decode(answer.ids)


def test_sixteen_at_a_time_they_are_the_same(real: Running, alone: list[Answer], ids_by_name: dict[str, int]) -> None:
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda prompt: ask(real, prompt, ids_by_name), PROMPTS))
    assert together == alone


def test_a_streamed_chat_answer_is_the_whole_one(real: Running) -> None:
    request: dict[str, Any] = {
        "model": "tiny/llama",
        "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = real.openai.chat.completions.create(**request).choices[0].message.content
    stream = real.openai.chat.completions.create(**request, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
    assert "Paris" in (whole or "")
