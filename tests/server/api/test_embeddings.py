"""/v1/embeddings: the vectors of LLM.embed, in OpenAI's shape; what can't be is a 400 that says what to do."""

from __future__ import annotations

import base64
import json
import math
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from pagemill_server import LLM
from pagemill_server.api.embeddings import Embeddings
from pagemill_server.api.prepare import Origin
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.errors import BadRequest
from pagemill_server.settings import Settings
from tests.pagemill.sample_encoders import POOLING, TRANSFORMER
from tests.server.api.running import NAME, Running, serving, settings_for, until
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import MAX_LENGTH, write_tiny_encoder

TEXTS = ["a cat", "Two WORDS, and more: dogs?", "x " * 40, "a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[float, ...]]:
    with LLM(str(folder), dtype="float32") as llm:  # as `serving` has it
        return [result.outputs.embedding for result in llm.embed(TEXTS)]


def post(server: Running, **body: Any) -> Any:
    with server.client() as client:
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def refused(server: Running, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error


def vectors(server: Running, given: Any, **more: Any) -> list[tuple[float, ...]]:
    return [tuple(entry["embedding"]) for entry in post(server, input=given, **more)["data"]]


# What is answered.


def test_the_vectors_are_those_of_python_in_the_texts_order(server: Running, expected: list[tuple[float, ...]]) -> None:
    answer = post(server, model=NAME, input=TEXTS)
    assert [tuple(entry["embedding"]) for entry in answer["data"]] == expected
    assert [(entry["object"], entry["index"]) for entry in answer["data"]] == [
        ("embedding", place) for place in range(len(TEXTS))
    ]
    tokens = answer["usage"]["prompt_tokens"]
    assert (answer["object"], answer["model"]) == ("list", NAME)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_usage_counts_every_token_special_ones_too(server: Running) -> None:
    assert post(server, input="a cat")["usage"]["prompt_tokens"] == 6  # [CLS] a c ##a ##t [SEP]


def test_openais_client_reads_its_own_base64_and_numbers(server: Running, expected: list[tuple[float, ...]]) -> None:
    by_default = server.openai.embeddings.create(model=NAME, input=TEXTS)  # it asks for base64
    assert [tuple(entry.embedding) for entry in by_default.data] == expected
    numbers = server.openai.embeddings.create(model=NAME, input=TEXTS[0], encoding_format="float", user="me")
    assert tuple(numbers.data[0].embedding) == expected[0]


def test_base64_is_float32_little_endian(server: Running, expected: list[tuple[float, ...]]) -> None:
    text = post(server, input=TEXTS[0], encoding_format="base64")["data"][0]["embedding"]
    assert struct.unpack("<64f", base64.b64decode(text)) == expected[0]


def test_token_ids_are_taken_as_they_are(server: Running, folder: Path, expected: list[tuple[float, ...]]) -> None:
    with LLM(str(folder), dtype="float32") as llm:
        ids = [list(result.prompt_token_ids) for result in llm.embed(TEXTS)]
    assert vectors(server, ids) == expected
    assert vectors(server, ids[0]) == expected[:1]


def test_without_special_tokens(server: Running, folder: Path) -> None:
    with LLM(str(folder), dtype="float32") as llm:
        (whole,) = llm.embed("a cat")
        (bare,) = llm.embed([list(whole.prompt_token_ids[1:-1])])
    answer = post(server, input="a cat", add_special_tokens=False)
    assert (tuple(answer["data"][0]["embedding"]), answer["usage"]["prompt_tokens"]) == (bare.outputs.embedding, 4)


def test_what_is_too_long_is_cut_when_asked(server: Running, folder: Path) -> None:
    long = "y " * 100
    with LLM(str(folder), dtype="float32") as llm:
        cut = [llm.embed(long, truncate_prompt_tokens=n)[0].outputs.embedding for n in (-1, 5)]
    assert [vectors(server, long, truncate_prompt_tokens=n)[0] for n in (-1, 5)] == cut
    assert post(server, input=long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == MAX_LENGTH
    assert post(server, input=list(range(10, 90)), truncate_prompt_tokens=7)["usage"]["prompt_tokens"] == 7
    assert post(server, input=long, truncate_prompt_tokens=7, add_special_tokens=False)["usage"]["prompt_tokens"] == 7


def test_more_texts_than_a_step_holds(server: Running, expected: list[tuple[float, ...]]) -> None:
    many = vectors(server, [TEXTS[0]] * 200 + [TEXTS[1]])
    assert many == [expected[0]] * 200 + [expected[1]]


def test_values_that_ask_for_nothing(server: Running) -> None:
    post(
        server,
        input="a",
        encoding_format=None,
        dimensions=64,
        truncation_side="right",
        embed_dtype="float32",
        priority=3,
        cache_salt="s",
        deadline_ms=1000,
        normalize=True,
        use_activation=None,
    )


def test_what_the_scheduler_is_told(server: Running) -> None:
    loaded = server.service.loaded
    assert loaded is not None
    body = {"input": ["a", "b"], "user": "u", "priority": -3, "cache_salt": "s", "deadline_ms": 1500}
    for request in Embeddings(server.service)._prepare(loaded, body, Origin(100.0, "key")).requests:
        assert (request.client, request.priority, request.cache_salt, request.deadline) == ("key/u", -3, "s", 101.5)
        assert request.arrival == 100.0
        assert request.pooling
    with pytest.raises(BadRequest, match="priority is -3"):
        Embeddings(server.service)._prepare(loaded, body, Origin(100.0, "key", max_priority=0))


def test_vectors_that_the_files_leave_long_are_normalised_when_asked(tmp_path: Path) -> None:
    with serving(write_tiny_encoder(tmp_path, sentence={"modules": [TRANSFORMER, POOLING]})) as long:
        (raw,), (same,), (short,) = (vectors(long, "a cat", normalize=asked) for asked in (None, False, True))
    assert raw == same
    assert math.hypot(*raw) != pytest.approx(1)
    assert short == pytest.approx([number / math.hypot(*raw) for number in raw])


# Sizes.


@pytest.fixture
def matryoshka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    folder = write_tiny_encoder(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | request.param
    (folder / "config.json").write_text(json.dumps(config))
    with serving(folder) as running:
        yield running


@pytest.mark.parametrize("matryoshka", [{"matryoshka_dimensions": [16, 32, 64]}], indirect=True)
def test_a_model_that_bears_it_is_cut_to_its_sizes(matryoshka: Running, expected: list[tuple[float, ...]]) -> None:
    (cut,) = vectors(matryoshka, TEXTS[0], dimensions=16)
    length = math.hypot(*expected[0][:16])
    assert cut == pytest.approx([number / length for number in expected[0][:16]], rel=1e-6)
    assert math.hypot(*cut) == pytest.approx(1)
    coded = matryoshka.openai.embeddings.create(model=NAME, input=TEXTS[0], dimensions=16)
    assert coded.data[0].embedding == pytest.approx(cut, rel=1e-6)
    assert vectors(matryoshka, TEXTS[0], dimensions=64) == expected[:1]
    error = refused(matryoshka, input="a", dimensions=20)
    assert (error["param"], error["message"]) == ("dimensions", "dimensions is 20; this model has 16, 32, 64.")


@pytest.mark.parametrize("matryoshka", [{"is_matryoshka": True}], indirect=True)
def test_one_that_names_no_sizes_is_cut_to_any(matryoshka: Running) -> None:
    assert len(vectors(matryoshka, "a", dimensions=7)[0]) == 7
    assert "any from 1 to 64" in refused(matryoshka, input="a", dimensions=65)["message"]


# What can't be.


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "Missing required parameter"),
        ({"input": None}, "input", "must be a string"),
        ({"input": ""}, "input", "input[0] is empty"),
        ({"input": []}, "input", "not empty"),
        ({"input": [[]]}, "input", "input[0] is empty"),
        ({"input": ["a", ""]}, "input", "input[1] is empty"),
        ({"input": ["a", [1]] * 1025}, "input", "2050 texts; at most 2048"),
        ({"input": ["a", 1]}, "input", "must be a string"),
        ({"input": [1, True]}, "input", "must be a string"),
        ({"input": {"text": "a"}}, "input", "must be a string"),
        ({"input": [[1.5]]}, "input", "must be a string"),
        ({"input": [5, 120]}, "input", "input[0] holds token id 120, which is not in the model's vocabulary of 120"),
        ({"input": [["x"], [5, -1]]}, "input", "must be a string"),
        ({"input": [[5], [5, -1]]}, "input", "input[1] holds token id -1"),
        ({"input": [5, 2**62]}, "input", "holds token id"),
        ({"input": ["a", "y " * 100]}, "input", "input[1] has 102 tokens, and this model takes at most 48"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "dimensions": 32}, "dimensions", "have 64 dimensions and were not trained to be cut"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "from 1 to the 48 tokens"),
        ({"input": "a", "truncate_prompt_tokens": 49}, "truncate_prompt_tokens", "from 1 to the 48 tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "greater than or equal to -1"),
        ({"input": "a", "temperature": 1}, "temperature", "Unknown parameter"),
        ({"input": "a", "normalize": False}, "normalize", "come normalised; leave normalize out"),
        ({"input": "a", "use_activation": False}, "use_activation", "leave use_activation out"),
        ({"input": "a", "use_activation": False, "normalize": True}, "normalize", "differ"),
        ({"input": "a", "messages": []}, "messages", "not supported"),
    ],
)
def test_what_cannot_be_asked(server: Running, body: dict[str, Any], param: str, message: str) -> None:
    error = refused(server, **body)
    assert error["param"] == param
    assert message in error["message"]


def test_a_text_that_is_too_long_says_how_to_cut_it(server: Running) -> None:
    error = refused(server, input="y " * 100)
    assert error["code"] == "context_length_exceeded"
    assert "truncate_prompt_tokens: -1" in error["message"]


def test_a_model_that_is_not_served(server: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        server.openai.embeddings.create(model="other", input="a")


# Models of the other kind.


def test_a_model_that_embeds_generates_nothing(server: Running) -> None:
    with server.client() as client:
        for path, body in (
            ("/v1/chat/completions", {"model": NAME, "messages": [{"role": "user", "content": "a"}]}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/responses", {"model": NAME, "input": "a"}),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_generative"), path
            assert "/v1/embeddings" in answer.json()["error"]["message"]


def test_a_model_that_generates_makes_no_vectors(tmp_path: Path) -> None:
    with serving(write_tiny_llama(tmp_path)) as generating:
        error = refused(generating, input="a")
        assert error["code"] == "model_not_embedding"
        assert "--task embed" in error["message"]


def test_a_decoder_that_is_told_to(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    model = ModelOptions(model=NAME, served_names=(NAME,), task="embed")
    cache = CacheConfig(memory_bytes=1 << 20, block_size=8)
    settings = Settings(model, cache, SchedulerConfig(), ServerConfig())
    texts = ["one", "another text, longer than a block", "x" * 256]
    with LLM(str(folder), task="embed", kv_cache_memory_bytes=1 << 20, block_size=8) as llm:
        wanted = [result.outputs.embedding for result in llm.embed(texts)]
    with serving(folder, settings=settings) as decoder:
        assert vectors(decoder, texts) == wanted
        assert "257 tokens, and this model takes at most 256" in refused(decoder, input="x" * 257)["message"]
        with decoder.client() as client:
            assert "/v1/embeddings" in client.post("/v1/completions", json={"prompt": "a"}).text
        decoder.wait_idle()


# Around it.


def test_the_routes_that_ask_nothing_of_the_model(server: Running) -> None:
    with server.client() as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        (card, _) = client.get("/v1/models").json()["data"]
        assert (card["id"], card["max_model_len"]) == (NAME, MAX_LENGTH)


def count(server: Running, series: str) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


def test_what_is_counted(folder: Path) -> None:
    with serving(folder) as fresh:
        post(fresh, input=["a cat", "a"])
        fresh.wait_idle()
        assert count(fresh, 'vllm:request_success_total{engine="0",finished_reason="stop"') == 2
        assert count(fresh, "vllm:prompt_tokens_total") == 6 + 3
        assert count(fresh, "vllm:request_prompt_tokens_sum") == 6 + 3
        assert count(fresh, "vllm:e2e_request_latency_seconds_count") == 2
        assert count(fresh, "vllm:request_queue_time_seconds_count") == 2
        assert count(fresh, "vllm:time_to_first_token_seconds_count") == 0
        assert count(fresh, "vllm:generation_tokens_total") == 0


class Held:
    """A runner that waits before each step until the test lets go."""

    def __init__(self, runner: Any) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self._runner = runner

    def run(self, output: Any) -> Any:
        self.entered.set()
        assert self.go.wait(30)
        return self._runner.run(output)


@pytest.fixture
def held(folder: Path) -> Iterator[tuple[Running, Held]]:
    settings = settings_for(folder)
    bounded = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64, max_num_queued_reqs=8)
    with serving(folder, settings=Settings(settings.model, settings.cache, bounded, settings.server)) as running:
        held = Held(running.model.engine._runner)
        running.model.engine._runner = held
        yield running, held
        held.go.set()


def test_a_client_that_hangs_up_takes_its_texts_back(held: tuple[Running, Held]) -> None:
    server, runner = held
    with server.client() as client:
        with pytest.raises(Exception, match="timed out"):
            client.post("/v1/embeddings", json={"input": ["a"] * 6}, timeout=4.0)
        assert runner.entered.is_set()
    until(lambda: server.service.in_flight == 0)  # the server has seen it, too
    runner.go.set()
    server.wait_idle()
    until(lambda: count(server, 'vllm:request_success_total{engine="0",finished_reason="abort"') == 6)
    assert len(vectors(server, ["a", "b"])) == 2


def test_so_many_texts_as_may_wait_or_none(held: tuple[Running, Held]) -> None:
    server, runner = held
    first = threading.Thread(target=lambda: post(server, input=["a"] * 2))
    first.start()
    assert runner.entered.wait(30)
    with server.client() as client:
        answer = client.post("/v1/embeddings", json={"input": ["a"] * 9})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) > 0
    assert server.stats.num_added <= 2  # none of the nine
    runner.go.set()
    first.join(30)
    server.wait_idle()


def test_a_step_that_fails_fails_the_call_and_no_other(held: tuple[Running, Held]) -> None:
    server, runner = held
    runner.go.set()
    working, runner._runner = runner._runner, None
    with server.client() as client:
        answer = client.post("/v1/embeddings", json={"input": ["a"]})
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
    runner._runner = working
    assert len(vectors(server, "a")) == 1


def test_an_engine_that_ended_is_said_so(held: tuple[Running, Held]) -> None:
    server, runner = held
    runner.go.set()
    runner._runner = None
    with server.client() as client:
        statuses = [client.post("/v1/embeddings", json={"input": "a"}).status_code for _ in range(3)]
        assert statuses == [500, 500, 503]
        assert client.get("/health").status_code == client.get("/ready").status_code == 503


def test_a_server_that_loads(folder: Path) -> None:
    with serving(folder, loaded=False) as running, running.client() as client:
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 503
        until(lambda: client.get("/ready").status_code == 503)
