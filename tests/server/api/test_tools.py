"""Tools end to end: what the model is shown, what becomes of what it says, and calls that it must make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.api.asking import CHAT, HI, error_of
from tests.server.api.running import NAME, Running, serving, settings_for
from tests.server.api.talking import MISTRAL, QWEN, job_of, prompt_of, says, serving_template
from tests.server.api.test_chat import events

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "enum": ["sky", "sea"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
WAIT = {"type": "function", "function": {"name": "wait"}}
TOOLS = [LOOK, WAIT]
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}  # a random model's thoughts hardly ever end
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its template renders tools and thoughts."""
    with serving_template(tmp_path_factory.mktemp("qwen"), QWEN) as running:
        yield running


def ask(server: Running, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(CHAT, json={"model": "tiny/llama", "messages": HI, "tools": TOOLS} | body)


def choice_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0])


def joined(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """What a client makes of a stream, for one choice."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": [], "finish_reason": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            assert message["finish_reason"] is None, "something came after the end"
            message["finish_reason"] = choice["finish_reason"]
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


def told(choice: dict[str, Any]) -> dict[str, Any]:
    """The same of a whole answer."""
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning") or "",
        "tool_calls": [call["function"] for call in message.get("tool_calls", [])],
        "finish_reason": choice["finish_reason"],
    }


def test_the_template_gets_the_tools(qwen: Running) -> None:
    shown = prompt_of(qwen, tools=TOOLS)
    assert f"<tools>\n{json.dumps(LOOK)}\n{json.dumps(WAIT)}\n</tools>" in shown


def test_where_it_may_call_none_it_is_shown_none(qwen: Running) -> None:
    assert prompt_of(qwen, tools=TOOLS, tool_choice="none") == prompt_of(qwen)


def test_a_template_that_ignores_tools_gets_them_in_a_system_message(server: Running) -> None:
    shown = prompt_of(server, tools=[WAIT])
    assert "<|im_start|>system\n# Tools" in shown
    assert json.dumps(WAIT) in shown


@pytest.mark.parametrize("name", ["qwen", "server"])
def test_a_conversation_with_calls_and_their_results(name: str, request: pytest.FixtureRequest) -> None:
    running: Running = request.getfixturevalue(name)
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{ "at":"sky" }'}}
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [called]}]
    shown = prompt_of(
        running, tools=TOOLS, messages=[*messages, {"role": "tool", "tool_call_id": "c1", "content": "blue"}]
    )
    assert CALL in shown
    assert "blue" in shown.rpartition(CALL)[2]


def test_only_the_allowed_tools_are_shown(qwen: Running) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "wait"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert prompt_of(qwen, tools=TOOLS, tool_choice=choice) == prompt_of(qwen, tools=[WAIT])


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_server_that_reads_no_calls_says_so(tiny: Path, choice: str) -> None:
    settings = settings_for(tiny)
    settings = replace(settings, chat=replace(settings.chat, tool_call_parser="none"))
    with serving(tiny, settings=settings) as running:
        error = error_of(ask(running, tool_choice=choice))
        assert (error["param"], error["code"]) == ("tools", "tools_not_supported")
        assert "--tool-call-parser" in error["message"]
        assert ask(running, tool_choice="none", max_tokens=1).status_code == 200


SAID = [
    "no call at all",
    CALL,
    f"{CALL}\n{CALL.replace('sky', 'sea')}",
    f"I will look.\n{CALL}",
    f"<think>\nWhere?\n</think>\n\nThere. {CALL}",
    "<think>\nOnly thoughts",
    "<tool_call>\nbroken",
    '<tool_call>\n{"name": "look", "arguments": {"at": "a</tool_call>b"}}\n</tool_call>',
    CALL[:-20],
    "é€ " + CALL.replace("sky", "é€\\u00e9"),
]


@pytest.mark.parametrize("text", SAID)
def test_streamed_is_whole(qwen: Running, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    says(monkeypatch, text)
    whole = told(choice_of(ask(qwen)))
    chunks = events(ask(qwen, stream=True))
    assert joined(chunks) == whole
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert whole["finish_reason"] == ("tool_calls" if whole["tool_calls"] else "stop")


def test_a_call(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, CALL)
    message = choice_of(ask(qwen))["message"]
    (call,) = message.pop("tool_calls")
    assert message == {"role": "assistant", "content": None, "refusal": None, "annotations": [], "reasoning": None}
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}


def test_a_call_cut_off_by_the_limit(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, CALL)
    body = {"max_tokens": len(CALL) - 20}
    whole = told(choice_of(ask(qwen, **body)))
    assert whole["finish_reason"] == "length"
    assert whole["tool_calls"][0]["arguments"].startswith('{"at": ')
    assert joined(events(ask(qwen, stream=True, **body))) == whole


def test_without_tools_markup_is_words(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, CALL)
    for body in ({"tools": []}, {"tool_choice": "none"}):
        choice = choice_of(ask(qwen, **body))
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


def test_a_stop_string_applies_to_what_the_model_writes(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, f"words{CALL}")
    choice = told(choice_of(ask(qwen, stop=["<tool_call>"])))
    assert (choice["content"], choice["tool_calls"], choice["finish_reason"]) == ("words", [], "stop")


def test_one_call_at_most(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, f"{CALL}\n{CALL}")
    assert len(told(choice_of(ask(qwen)))["tool_calls"]) == 2
    whole = told(choice_of(ask(qwen, parallel_tool_calls=False)))
    assert len(whole["tool_calls"]) == 1
    assert joined(events(ask(qwen, parallel_tool_calls=False, stream=True))) == whole


def test_several_choices_each_with_calls_of_its_own(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, f"a {CALL}")
    choices = ask(qwen, n=3).json()["choices"]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 3
    chunks = events(ask(qwen, n=3, stream=True))
    assert [joined(chunks, index) for index in range(3)] == [told(choice) for choice in choices]


def test_log_probabilities_of_all_that_it_wrote(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, text := f"a<b {CALL}")
    whole = choice_of(ask(qwen, logprobs=True))["logprobs"]["content"]
    assert "".join(token["token"] for token in whole) == text
    chunks = [chunk["choices"][0] for chunk in events(ask(qwen, logprobs=True, stream=True))]
    streamed = [token for choice in chunks if choice["logprobs"] for token in choice["logprobs"]["content"]]
    assert [token["token"] for token in streamed] == [token["token"] for token in whole]


def test_openais_older_functions(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompt_of(qwen, functions=[LOOK["function"]]) == prompt_of(qwen, tools=[LOOK])
    says(monkeypatch, f"{CALL}\n{CALL}")  # they had one at most
    body = {"tools": None, "functions": [LOOK["function"]], "function_call": "auto"}
    choice = choice_of(ask(qwen, **body))
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "look", "arguments": '{"at": "sky"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in events(ask(qwen, stream=True, **body))]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert calls[0] == {"name": "look", "arguments": ""}
    assert "".join(call["arguments"] for call in calls) == '{"at": "sky"}'


@pytest.mark.parametrize("special", [("[TOOL_CALLS]",), ()], ids=["a token", "text"])
def test_a_marker_that_is_a_token_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, special: tuple[str, ...]
) -> None:
    text = 'hm [TOOL_CALLS][{"name": "look", "arguments": {"at": "sky"}}]'
    with serving_template(tmp_path, MISTRAL, special) as mistral:
        forced = told(choice_of(ask(mistral, tools=[LOOK], tool_choice="required", parallel_tool_calls=False)))
        assert [call["name"] for call in forced["tool_calls"]] == ["look"]
        says(monkeypatch, text)
        whole = choice_of(ask(mistral))
        assert told(whole)["tool_calls"] == [{"name": "look", "arguments": '{"at": "sky"}'}]
        assert len(whole["message"]["tool_calls"][0]["id"]) == 9
        assert joined(events(ask(mistral, stream=True))) == told(whole)
        plain = told(choice_of(ask(mistral, tool_choice="none")))
        assert plain["content"] == (text.replace("[TOOL_CALLS]", "") if special else text)


# What must come, without anybody's help: the tools' own grammar on a random model.


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_must_come(qwen: Running, seed: int) -> None:
    whole = told(
        choice_of(ask(qwen, tools=[LOOK], tool_choice="required", parallel_tool_calls=False, seed=seed, **AT_ONCE))
    )
    (call,) = whole["tool_calls"]
    assert call["name"] == "look"
    assert json.loads(call["arguments"])["at"] in ("sky", "sea")
    assert whole["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("body", [{"tool_choice": {"type": "function", "function": {"name": "look"}}}])
def test_the_named_call(qwen: Running, body: dict[str, Any]) -> None:
    body |= {"seed": 5} | AT_ONCE
    whole = told(choice_of(ask(qwen, **body)))
    assert [call["name"] for call in whole["tool_calls"]] == ["look"]
    assert whole["finish_reason"] == "tool_calls"
    assert joined(events(ask(qwen, stream=True, **body))) == whole


def test_the_named_function(qwen: Running) -> None:
    body = {"tools": None, "functions": [LOOK["function"]], "function_call": {"name": "look"}} | AT_ONCE
    assert choice_of(ask(qwen, **body))["message"]["function_call"]["name"] == "look"


def test_a_call_or_an_answer_of_a_given_form(qwen: Running) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for begin, kind in (("<", "tool_calls"), ("{", "stop")):  # a random model leans to neither
        bias = {str(ord(begin)): 100}
        whole = told(choice_of(ask(qwen, tools=[LOOK], response_format=form, logit_bias=bias, seed=1, **AT_ONCE)))
        assert whole["finish_reason"] == kind
        assert bool(whole["tool_calls"]) == (kind == "tool_calls")
        assert whole["content"] == "" or json.loads(whole["content"])["n"] in (1, 2)


def test_a_schema_that_can_not_be_enforced(qwen: Running) -> None:
    tool = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "patternProperties": 5}}}
    error = error_of(ask(qwen, tools=[tool], tool_choice="required"))
    assert (error["param"], error["code"]) == ("tools", "invalid_grammar")


def test_openais_client_in_a_loop_of_two_turns(qwen: Running) -> None:
    """Its own types, to the letter: the answer goes back as the client keeps it."""
    strict = openai.OpenAI(
        base_url=f"{qwen.url}/v1",
        api_key="not-needed",
        max_retries=0,
        http_client=httpx.Client(verify=False),
        _strict_response_validation=True,
    )
    messages: list[Any] = list(HI)
    with strict:
        first = strict.chat.completions.create(
            model=NAME,
            messages=messages,
            tools=TOOLS,  # type: ignore[arg-type]
            tool_choice={"type": "function", "function": {"name": "look"}},
            extra_body=AT_ONCE,
        )
        message = first.choices[0].message
        assert message.tool_calls
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "blue"}]
        second = strict.chat.completions.create(
            model=NAME,
            messages=messages,
            tools=TOOLS,  # type: ignore[arg-type]
            max_tokens=5,
        )
        assert second.choices[0].message.role == "assistant"
        with strict.chat.completions.stream(
            model=NAME,
            messages=HI,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            tool_choice={"type": "function", "function": {"name": "look"}},
            extra_body=AT_ONCE,
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.tool_calls
        assert final.choices[0].message.tool_calls[0].function.name == "look"


def test_what_is_asked_for_is_compiled_before_it_waits(qwen: Running) -> None:
    (request,) = job_of(
        qwen, {"model": "tiny/llama", "messages": HI, "tools": TOOLS, "tool_choice": "required"}
    ).requests
    assert request.sampling.grammar
    (request,) = job_of(qwen, {"model": "tiny/llama", "messages": HI, "tools": TOOLS}).requests
    assert not request.sampling.grammar


def test_calls_of_strict_tools_match_if_they_come(qwen: Running) -> None:
    """`words_or_calls` of the format, as its own tests hold it."""
    strict = {"type": "function", "function": LOOK["function"] | {"strict": True}}
    (request,) = job_of(qwen, {"model": "tiny/llama", "messages": HI, "tools": [strict, WAIT]}).requests
    assert request.sampling.grammar
    assert ask(qwen, tools=[strict, WAIT], max_tokens=20, seed=1).status_code == 200


def test_a_client_that_hangs_up_in_a_call_frees_its_blocks(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, CALL.replace("sky", "s" * 3000))
    with (
        qwen.client() as client,
        client.stream(
            "POST", CHAT, json={"model": "tiny/llama", "messages": HI, "tools": TOOLS, "stream": True}
        ) as response,
    ):
        for line in response.iter_lines():
            if '"arguments":"s' in line:
                break
    qwen.wait_idle()
