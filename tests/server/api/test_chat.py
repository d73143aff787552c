"""/v1/chat/completions through openai's own client and, where its shape matters to the letter, as bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pagemill_server.api import neutral
from pagemill_server.api.protocol import ChatBody
from tests.server.api.running import NAME, Running

MESSAGES: Any = [{"role": "user", "content": "héllo"}]


def events(response: httpx.Response) -> list[Any]:
    """The data of every event; the last is checked to be [DONE]."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def ask(server: Running, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(
            "/v1/chat/completions", json={"model": "tiny/llama", "messages": MESSAGES, "ignore_eos": True} | body
        )


def test_whole(idle_server: Running) -> None:
    answer = idle_server.openai.chat.completions.create(model=NAME, messages=MESSAGES, max_tokens=7, seed=1)
    choice = answer.choices[0]
    assert (answer.object, answer.model, choice.index, choice.finish_reason) == ("chat.completion", NAME, 0, "length")
    assert (choice.message.role, choice.message.refusal, choice.logprobs) == ("assistant", None, None)
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7


def test_streamed_is_the_same_text(idle_server: Running) -> None:
    whole = ask(idle_server, max_tokens=40, temperature=0).json()["choices"][0]
    streamed = events(ask(idle_server, max_tokens=40, temperature=0, stream=True))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed) == whole["message"]["content"]
    assert streamed[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_chunks_to_the_letter(idle_server: Running) -> None:
    chunks = events(ask(idle_server, max_tokens=5, stream=True, stream_options={"include_usage": True}, seed=1))
    first, *inner, end, usage = chunks
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in inner)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *inner])
    assert end["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    assert all(chunk["usage"] is None for chunk in [first, *inner, end])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


def test_usage_only_when_asked(idle_server: Running) -> None:
    chunks = events(ask(idle_server, max_tokens=2, stream=True))
    assert all("usage" not in chunk for chunk in chunks)


def test_openais_client_streams(idle_server: Running) -> None:
    stream = idle_server.openai.chat.completions.create(
        model="alias",
        messages=MESSAGES,
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert chunks[0].model == "alias"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_in_step_with_the_text(idle_server: Running, stream: bool) -> None:
    response = ask(idle_server, max_tokens=50, seed=3, logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        choices = [chunk["choices"][0] for chunk in events(response)]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    else:
        choice = response.json()["choices"][0]
        text, tokens = choice["message"]["content"], choice["logprobs"]["content"]
    assert len(tokens) == 50
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode("utf-8", "replace") == text
    for token in tokens:
        assert token["logprob"] <= token["top_logprobs"][0]["logprob"] <= 0
        assert len(token["top_logprobs"]) == 2


def test_logprobs_without_top(idle_server: Running) -> None:
    tokens = ask(idle_server, max_tokens=2, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in tokens] == [[], []]


def test_the_same_seed_says_the_same(idle_server: Running) -> None:
    def said(seed: int) -> str:
        return str(ask(idle_server, max_tokens=20, seed=seed).json()["choices"][0]["message"]["content"])

    assert said(5) == said(5)
    assert said(5) != said(6)


def test_without_max_tokens_the_context_is_the_limit(tiny_context_server: Running) -> None:
    answer = ask(tiny_context_server).json()
    assert answer["usage"]["total_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "content",
    ["ab", [{"type": "text", "text": "ab"}], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]],
)
def test_content_as_text_or_parts(idle_server: Running, content: Any) -> None:
    response = ask(idle_server, messages=[{"role": "user", "content": content}], max_tokens=1)
    assert response.status_code == 200


def test_developer_is_system_and_null_an_empty_turn(idle_server: Running) -> None:
    def prompt_tokens(*messages: dict[str, Any]) -> int:
        return int(ask(idle_server, messages=list(messages), max_tokens=1).json()["usage"]["prompt_tokens"])

    assert prompt_tokens({"role": "developer", "content": "x"}) == prompt_tokens({"role": "system", "content": "x"})
    with_null = prompt_tokens({"role": "assistant", "content": None}, {"role": "user", "content": "x"})
    assert with_null == prompt_tokens({"role": "assistant", "content": ""}, {"role": "user", "content": "x"})


def test_a_conversation_too_long_for_the_model(tiny_context_server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        tiny_context_server.openai.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "x" * 100}]
        )
    assert error.value.code == "context_length_exceeded"
    assert "64 tokens" in error.value.message


def test_values_that_ask_for_nothing_are_taken(idle_server: Running) -> None:
    response = ask(
        idle_server,
        max_tokens=1,
        n=1,
        user="u",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        presence_penalty=0.0,
        frequency_penalty=0,
        logit_bias={},
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        stop=None,
        stream=False,
    )
    assert response.status_code == 200, response.text


def test_the_guide_names_every_field() -> None:
    """Also those that are taken and not needed."""
    docs = Path(__file__).parents[3] / "docs"
    guide = "".join((docs / f"{name}.md").read_text() for name in ("chat", "sampling"))
    assert [
        name for name in (*ChatBody.model_fields, *neutral.CHAT, *neutral.MESSAGE) if f"`{name}`" not in guide
    ] == []
