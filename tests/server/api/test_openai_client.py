"""openai's own client with strict validation, blocking and asynchronous: each call that it has for us, each error as its class.

Strict: it raises at a field that its types don't know so. What a route's own tests ask through this client is not asked again. Its
types are wrong about OpenAI's own answers in three places, where it is not strict or asked otherwise: null at a prompt's first
token (echo), null as the finish reason of a completion's chunks, and vectors in base64, which it decodes too late for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from openai.types import Completion
from pydantic import BaseModel

from pagemill_server.api.key_ring import KeyRing
from pagemill_server.config import ChatOptions
from tests.server.api.running import NAME, Running, serving, settings_for
from tests.server.tiny_bert import write_tiny_encoder

MESSAGES: Any = [{"role": "user", "content": "héllo 🌍"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Bern", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


class Weather(BaseModel):
    raining: bool


@pytest.fixture(scope="module")
def talker(tiny: Path) -> Iterator[Running]:
    with serving(tiny, settings=replace(settings_for(tiny), chat=ChatOptions(tool_call_parser="hermes"))) as running:
        yield running


@contextmanager
def strict(server: Running, key: str = "not-needed") -> Iterator[openai.OpenAI]:
    http = DefaultHttpxClient(verify=False, timeout=60)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=key, max_retries=0, http_client=http, _strict_response_validation=True
    ) as client:
        yield client


def asynchronous(server: Running) -> openai.AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False, timeout=60)
    return openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=0, http_client=http, _strict_response_validation=True
    )


Call = Callable[[Any], Any]  # of a client of either kind
CALLS: dict[str, Call] = {
    "chat": lambda c: c.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=4),
    "chat with logprobs": lambda c: c.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=3, n=2
    ),
    "chat of a form": lambda c: c.chat.completions.create(
        model=NAME, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=60
    ),
    "chat with a call": lambda c: c.chat.completions.create(
        model=NAME, messages=MESSAGES, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    ),
    "completion": lambda c: c.completions.create(model=NAME, prompt=["a", "b"], max_tokens=4, logprobs=2),
    "response": lambda c: c.responses.create(model=NAME, input="hi", max_output_tokens=4),
    "models": lambda c: c.models.list(),
    "model": lambda c: c.models.retrieve(NAME),
}
STREAMS: dict[str, Call] = {
    "chat": lambda c: c.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=4, stream=True, stream_options={"include_usage": True}
    ),
    "chat with a call": lambda c: c.chat.completions.create(
        model=NAME, messages=MESSAGES, tools=TOOLS, tool_choice="required", stream=True
    ),
    "response": lambda c: c.responses.create(model=NAME, input="hi", max_output_tokens=4, stream=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call(talker: Running, name: str) -> None:
    with strict(talker) as client:
        assert CALLS[name](client)._request_id is not None


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_asynchronous_client(talker: Running, name: str) -> None:
    async def call() -> None:
        async with asynchronous(talker) as client:
            assert (await CALLS[name](client))._request_id is not None

    asyncio.run(call())


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream(talker: Running, name: str) -> None:
    with strict(talker) as client:
        assert len(list(STREAMS[name](client))) >= 3


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_the_asynchronous_client(talker: Running, name: str) -> None:
    async def call() -> int:
        async with asynchronous(talker) as client:
            return len([chunk async for chunk in await STREAMS[name](client)])

    assert asyncio.run(call()) >= 3


def test_a_stream_of_a_completion(talker: Running) -> None:
    chunks = list(talker.openai.completions.create(model=NAME, prompt="a", max_tokens=4, logprobs=2, stream=True))
    assert {choice.finish_reason for chunk in chunks[:-1] for choice in chunk.choices} == {None}
    for chunk in chunks:
        for choice in chunk.choices:
            choice.finish_reason = choice.finish_reason or "stop"
        Completion.model_validate(chunk.model_dump(exclude_unset=True))


def test_vectors(tmp_path: Path) -> None:
    async def call(server: Running) -> Any:
        async with asynchronous(server) as client:
            return await client.embeddings.create(model=NAME, input=["a", "b"], encoding_format="float")

    with serving(write_tiny_encoder(tmp_path)) as server, strict(server) as client:
        whole = client.embeddings.create(model=NAME, input=["a", "b"], encoding_format="float")
        assert [one.embedding for one in asyncio.run(call(server)).data] == [one.embedding for one in whole.data]


def test_an_answer_is_parsed(talker: Running) -> None:
    with strict(talker) as client:
        answer = client.chat.completions.parse(model=NAME, messages=MESSAGES, response_format=Weather, seed=1)
        calls = client.chat.completions.parse(model=NAME, messages=MESSAGES, tools=TOOLS, tool_choice="required")
    assert isinstance(answer.choices[0].message.parsed, Weather)
    (call,) = calls.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments in ({"city": "Bern"}, {"city": "Oslo"})


def test_the_stream_that_it_puts_together(talker: Running) -> None:
    """Its helper keeps a snapshot of the message, and raises at deltas that don't fit."""
    with strict(talker) as client:
        whole = client.chat.completions.parse(model=NAME, messages=MESSAGES, response_format=Weather, temperature=0)
        with client.chat.completions.stream(
            model=NAME, messages=MESSAGES, response_format=Weather, temperature=0
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed


def test_a_call_that_it_puts_together(talker: Running) -> None:
    with (
        strict(talker) as client,
        client.chat.completions.stream(
            model=NAME, messages=MESSAGES, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
        ) as stream,
    ):
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    (call,) = done
    assert (call.name, call.parsed_arguments) in (("get_weather", {"city": "Bern"}), ("get_weather", {"city": "Oslo"}))


def test_raw_and_streamed_responses(talker: Running) -> None:
    with strict(talker) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=NAME, messages=MESSAGES, max_tokens=1, extra_headers={"x-request-id": "mine"}
        )
        assert raw.headers["x-request-id"] == "mine"
        assert raw.parse().object == "chat.completion"
        with client.completions.with_streaming_response.create(model=NAME, prompt="a", max_tokens=1) as answer:
            assert answer.parse().object == "text_completion"


def test_fields_beyond_its_own_go_through(talker: Running) -> None:
    extra = {"top_k": 1, "ignore_eos": True, "min_tokens": 4, "repetition_penalty": 1.1}
    with strict(talker) as client:
        answer = client.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=4, extra_body=extra)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def chat(client: openai.OpenAI | openai.AsyncOpenAI, **body: Any) -> Any:
    return client.chat.completions.create(**({"model": NAME, "messages": MESSAGES, "max_tokens": 2} | body))


@pytest.mark.parametrize(
    ("kind", "body", "code", "param"),
    [
        (openai.BadRequestError, {"temperature": 3}, "invalid_value", "temperature"),
        (openai.BadRequestError, {"max_tokens": 10**9}, "context_length_exceeded", "max_tokens"),
        (openai.BadRequestError, {"extra_body": {"unheard_of": 1}}, "unknown_parameter", "unheard_of"),
        (openai.BadRequestError, {"stream": True, "temperature": 3}, "invalid_value", "temperature"),
        (openai.NotFoundError, {"model": "other"}, "model_not_found", "model"),
    ],
)
def test_a_mistake_is_an_error_of_its_class(talker: Running, kind: Any, body: Any, code: str, param: str) -> None:
    with strict(talker) as client, pytest.raises(kind) as error:
        chat(client, **body)
    assert (error.value.code, error.value.param, error.value.type) == (code, param, "invalid_request_error")
    assert error.value.request_id


def test_the_asynchronous_client_raises_and_streams_the_same(talker: Running) -> None:
    async def mistake() -> None:
        async with asynchronous(talker) as client:
            await chat(client, temperature=3)

    with pytest.raises(openai.BadRequestError) as error:
        asyncio.run(mistake())
    assert (error.value.code, error.value.param) == ("invalid_value", "temperature")

    body: dict[str, Any] = {"model": NAME, "prompt": "a", "max_tokens": 8, "seed": 1, "stream": True}

    async def text() -> str:  # not with strict types: theirs know no chunk that isn't the last
        async with openai.AsyncOpenAI(base_url=f"{talker.url}/v1", api_key="x", max_retries=0) as client:
            return "".join([chunk.choices[0].text async for chunk in await client.completions.create(**body)])

    assert asyncio.run(text()) == "".join(chunk.choices[0].text for chunk in talker.openai.completions.create(**body))


def test_a_wrong_key_is_its_error(tiny: Path) -> None:
    with serving(tiny, api_keys=["right"]) as server:
        with strict(server, "wrong") as client, pytest.raises(openai.AuthenticationError):
            chat(client)
        with strict(server, "right") as client:
            chat(client)


def test_a_limit_is_its_error(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: a, key: k, requestsPerMinute: 1}]")
    with serving(tiny, api_keys=KeyRing((), str(file))) as server, strict(server, "k") as client:
        chat(client)
        with pytest.raises(openai.RateLimitError) as error:
            chat(client)
    assert error.value.code == "rate_limit_exceeded"
    assert float(error.value.response.headers["retry-after"]) > 0


def test_a_server_that_loads_is_its_error(tiny: Path) -> None:
    with (
        serving(tiny, loaded=False) as server,
        strict(server) as client,
        pytest.raises(openai.InternalServerError) as error,  # its class for every 5xx
    ):
        chat(client)
    assert (error.value.status_code, error.value.code) == (503, "model_loading")
    assert error.value.response.headers["retry-after"].isdigit()  # its own retries wait as long
