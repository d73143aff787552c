"""/v1/responses through openai's own client with strict validation, and as bytes where its shape matters to the letter.

The model is random; what it shall say is forced on it with a grammar of one text.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseReasoningItem
from pydantic import BaseModel

from tests.server.api.responses.test_output import replayed
from tests.server.api.running import NAME, Running, serving
from tests.server.api.talking import says
from tests.server.api.test_status import Broken

TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
    {"type": "function", "name": "get_time", "parameters": None, "strict": False},
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
ANSWERS = {
    "words": "Hello, wörld 🌍!",
    "thoughts": "<think>\nLet me see.\n</think>\n\nIt is 4.",
    "thoughts only": "<think>\nhm\n</think>",
    "a call": CALL,
    "all": f'<think>hm</think>I look.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>',
    "no call after all": 'a <tool_call> is {"name": 3',
    "a marker in an argument": CALL.replace("Bern", "</tool_call>"),
}
Patch = pytest.MonkeyPatch
_OF_ONE_REQUEST = {"id", "call_id", "created_at", "completed_at"}


def ask(server: Running, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/responses", json={"model": NAME, "input": "héllo"} | body)


def events(response: httpx.Response) -> list[Any]:
    """Each has its type twice, and its number."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    made = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event.pop("sequence_number") == number
        made.append(event)
    return made


def timeless(value: Any) -> Any:
    """Without what no two responses have in common."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in _OF_ONE_REQUEST}
    return [timeless(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in ANSWERS.items()])
def test_streamed_is_what_is_whole(talker: Running, monkeypatch: Patch, text: str, logprobs: bool) -> None:
    says(monkeypatch, text)
    body: dict[str, Any] = {"tools": TOOLS, "max_output_tokens": 300}
    if logprobs:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = ask(talker, **body).json()
    created, in_progress, *inner, last = events(ask(talker, stream=True, **body))
    assert [created["type"], in_progress["type"], last["type"]] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert created["response"] == in_progress["response"]
    assert created["response"] | {"status": "completed", "output": []} == last["response"] | {
        "output": [],
        "usage": None,
        "completed_at": None,
    }
    assert replayed(inner) == last["response"]["output"]
    cached = {"input_tokens_details": None}
    for response in (whole, last["response"]):
        response["usage"] |= cached
    assert timeless(whole) == timeless(last["response"])


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_cut_anywhere_streamed_is_what_is_whole(talker: Running, monkeypatch: Patch, cut: int) -> None:
    says(monkeypatch, ANSWERS["all"])
    body = {"tools": TOOLS, "max_output_tokens": cut}
    whole = ask(talker, **body).json()
    *_, last = events(ask(talker, stream=True, **body))
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["usage"]["output_tokens"] == cut
    assert timeless(whole["output"]) == timeless(last["response"]["output"])
    assert all(item["status"] == "completed" for item in whole["output"][:-1])


def test_logprobs_are_of_the_words(talker: Running, monkeypatch: Patch) -> None:
    says(monkeypatch, ANSWERS["all"])
    output = ask(talker, tools=TOOLS, include=["message.output_text.logprobs"]).json()["output"]
    part = output[1]["content"][0]
    assert "".join(token["token"] for token in part["logprobs"]) == part["text"] == "I look."


def test_a_response_is_all_that_strict_types_want(strict: openai.OpenAI, monkeypatch: Patch) -> None:
    says(monkeypatch, ANSWERS["thoughts"])
    response = strict.responses.create(
        model=NAME,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        instructions="Be brief.",
        metadata={"a": "b"},
        temperature=0.5,
        tools=TOOLS,
        parallel_tool_calls=False,
        max_output_tokens=300,
    )
    assert (response.object, response.status, response.model) == ("response", "completed", NAME)
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"a": "b"}, 0.5)
    assert (response.parallel_tool_calls, response.tool_choice, response.max_output_tokens) == (False, "auto", 300)
    assert response.output_text == "It is 4."
    reasoning = response.output[0]
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Let me see."
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len("<think>\nLet me see.\n</think>")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert [tool["name"] for tool in response.model_dump()["tools"]] == ["get_weather", "get_time"]


def test_openais_client_streams(strict: openai.OpenAI, monkeypatch: Patch) -> None:
    says(monkeypatch, ANSWERS["all"])
    with strict.responses.stream(model=NAME, input="hi", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.function_call_arguments.delta" in kinds
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "I look."


HELLO = {"structured_outputs": {"choice": ["Hello"]}}


async def asynchronously(url: str) -> tuple[Response, str]:
    http = openai.DefaultAsyncHttpxClient(verify=False, timeout=60)
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=http, _strict_response_validation=True
    ) as client:
        whole = await client.responses.create(model=NAME, input="hi", extra_body=HELLO)
        stream = await client.responses.create(model=NAME, input="hi", stream=True, extra_body=HELLO)
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
    return whole, text


def test_openais_asynchronous_client(idle_server: Running) -> None:
    whole, text = asyncio.run(asynchronously(idle_server.url))
    assert whole.output_text == "Hello"
    assert text == "Hello"


class Weather(BaseModel):
    city: Literal["Bern", "Basel"]
    sun: bool


def test_a_schema_is_parsed(strict_plain: openai.OpenAI) -> None:
    response = strict_plain.responses.parse(model=NAME, input="hi", text_format=Weather)
    assert isinstance(response.output_parsed, Weather)
    body = response.model_dump()["text"]["format"]
    assert (body["type"], body["name"], body["strict"]) == ("json_schema", "Weather", True)


def test_a_streamed_schema_is_parsed(strict_plain: openai.OpenAI) -> None:
    with strict_plain.responses.stream(model=NAME, input="hi", text_format=Weather) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Weather)


def test_json_object(idle_server: Running) -> None:
    body = ask(idle_server, text={"format": {"type": "json_object"}}, max_output_tokens=60, temperature=0).json()
    assert body["output"][0]["content"][0]["text"].startswith("{")


def test_a_tool_loop_of_two_turns(strict: openai.OpenAI, monkeypatch: Patch) -> None:
    """What came is sent back as it is, with the result."""
    says(monkeypatch, ANSWERS["all"])
    turns: Any = [{"role": "user", "content": "What is the weather?"}]
    first = strict.responses.create(model=NAME, input=turns, tools=TOOLS)
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"city": "Bern"}),
        ("get_time", {}),
    ]
    assert len({call.call_id for call in calls}) == 2
    turns += first.output
    turns += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    says(monkeypatch, "Sunny.")
    second = strict.responses.create(model=NAME, input=turns, tools=TOOLS)
    assert second.output_text == "Sunny."
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + len(CALL)


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "go"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "go"}]},
    ],
)
def test_a_call_that_must_come(strict_plain: openai.OpenAI, choice: Any) -> None:
    # Closed: a random model would go on with other keys to the end of its context.
    to = {"to": {"enum": ["Bern", "Basel"]}}
    where = {"type": "object", "properties": to, "required": ["to"], "additionalProperties": False}
    tools: Any = [{"type": "function", "name": n, "parameters": where, "strict": True} for n in ("go", "come")]
    response = strict_plain.responses.create(
        model=NAME, input="hi", tools=tools, tool_choice=choice, parallel_tool_calls=False
    )
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name in (("go", "come") if choice == "required" else ("go",))
    assert json.loads(call.arguments)["to"] in ("Bern", "Basel")
    assert response.model_dump()["tool_choice"] == choice


def test_an_error_in_the_middle(tiny: Path) -> None:
    """openai's client raises at it; whoever waits for the response's end finds that it failed, with what there was."""
    with serving(tiny) as server, server.client() as client:
        body = {"model": NAME, "input": "hi", "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/responses", json=body) as answer:
            lines = answer.iter_lines()
            while "output_text.delta" not in next(lines):
                pass
            server.model.engine._runner = Broken()
            made = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        error, failed = made[-2:]
        assert error["type"] == "error"
        assert error["error"]["message"] == error["message"] == failed["response"]["error"]["message"]
        assert failed["sequence_number"] == error["sequence_number"] + 1
        assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
        assert failed["response"]["error"]["code"] == "server_error"
        assert failed["response"]["output"][0]["status"] == "incomplete"
        assert client.post("/v1/responses", json=body).status_code in (500, 503)


def test_what_is_stored(strict: openai.OpenAI) -> None:
    response = strict.responses.create(model=NAME, input="hi", store=True, max_output_tokens=1)
    assert response.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError, match="stores none"):
        strict.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError, match="stores none"):
        strict.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError, match="stores none"):
        strict.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="stores none"):
        strict.responses.input_items.list(response.id)


def test_no_route_beside_them(talker: Running) -> None:
    with talker.client() as client:
        answer = client.post("/v1/responses/compact", json={})
        unknown = client.get("/v1/responses/resp_1/output")
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "DELETE"})
    assert unknown.json()["error"]["code"] == "unknown_url"


def test_a_client_that_goes_frees_its_blocks(talker: Running) -> None:
    with (
        talker.client() as client,
        client.stream(
            "POST", "/v1/responses", json={"model": NAME, "input": "hi", "stream": True, "ignore_eos": True}
        ) as answer,
    ):
        next(answer.iter_lines())
    talker.wait_idle()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"max_tokens": 3}, "max_tokens"),
    ({"n": 2}, "n"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [*TOOLS, {"type": "function", "name": "no spaces"}]}, "tools[2].name"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
    ({"tools": [TOOLS[0] | {"parameters": {"type": "string"}}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "function": {"name": "chat"}}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "none_such"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 3}}}}, "text.format.schema"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(key): "" for key in range(17)}}, "metadata"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"temperature": 3}, "temperature"),
    ({"messages": []}, "messages"),
    ({"input": None}, "input"),
    ({"model": None}, "model"),
]


@pytest.mark.parametrize(("body", "param"), [pytest.param(b, p, id=f"{p}-{n}") for n, (b, p) in enumerate(REFUSED)])
def test_refused_by_name(talker: Running, body: dict[str, Any], param: str) -> None:
    answer = ask(talker, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert param in error["message"]


TAKEN: list[dict[str, Any]] = [
    {"store": False, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"service_tier": "auto", "truncation": "disabled", "background": False, "metadata": {}},
    {"previous_response_id": None, "conversation": None, "prompt": None, "max_tool_calls": None, "text": None},
    {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": None, "summary": "auto"}},
    {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "parallel_tool_calls": True, "tools": []},
    {"stream": True, "stream_options": {"include_obfuscation": False}},
    {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 1, "stop": ["x"], "priority": 1, "cache_salt": "a"},
]


@pytest.mark.parametrize("body", TAKEN)
def test_taken(talker: Running, body: dict[str, Any]) -> None:
    assert ask(talker, max_output_tokens=1, **body).status_code == 200
