"""Reasoning end to end: told apart from the answer, counted, asked for and left out, with forms and calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.asking import HI, error_of
from tests.server.api.running import Running, serving, settings_for
from tests.server.api.talking import OPENED, QWEN, prompt_of, says, serving_template, write_model
from tests.server.api.test_chat import events
from tests.server.api.test_tools import LOOK, choice_of, joined, told
from tests.server.api.test_tools import ask as ask_with_tools

THOUGHT = "<think>\nhm, é\n</think>\n\n"
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [{"n": 1}, {"n": 2}]}}}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_template(tmp_path_factory.mktemp("qwen"), QWEN) as running:
        yield running


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its prompts end within the thoughts."""
    with serving_template(tmp_path_factory.mktemp("opened"), OPENED) as running:
        yield running


def ask(server: Running, **body: Any) -> Any:
    return ask_with_tools(server, tools=None, **body)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{THOUGHT}yes", "hm, é", "yes"),
        ("yes", "", "yes"),
        ("<think>\nhm", "hm", ""),
        ("<think></think>yes", "", "yes"),
        ("yes </think> no <think>", "", "yes </think> no <think>"),
    ],
)
def test_told_apart(qwen: Running, monkeypatch: pytest.MonkeyPatch, text: str, reasoning: str, content: str) -> None:
    says(monkeypatch, text)
    choice = choice_of(ask(qwen))
    assert list(choice["message"]) == ["role", "content", "refusal", "annotations", "reasoning"]
    whole = told(choice)
    assert (whole["reasoning"], whole["content"], whole["finish_reason"]) == (reasoning, content, "stop")
    assert joined(events(ask(qwen, stream=True))) == whole


def test_thoughts_that_the_prompt_has_begun(opened: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "hm\n</think>\n\nyes")
    body = ask(opened).json()
    whole = told(body["choices"][0])
    assert (whole["reasoning"], whole["content"]) == ("hm", "yes")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("hm\n</think>")}
    assert joined(events(ask(opened, stream=True))) == whole


def test_a_model_that_does_not_reason_says_nothing_of_it(server: Running) -> None:
    body = ask(server, max_tokens=1).json()
    assert list(body["choices"][0]["message"]) == ["role", "content", "refusal", "annotations"]
    assert "completion_tokens_details" not in body["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_counted(qwen: Running, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    says(monkeypatch, f"{THOUGHT}yes")
    if stream:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = events(ask(qwen, stream=True, stream_options=options, n=2))
        usage = chunks[-1]["usage"]
        running = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert running == sorted(running)
    else:
        usage = ask(qwen, n=2).json()["usage"]
    thought = len("<think>\nhm, é\n</think>".encode())
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * thought}
    assert usage["completion_tokens"] == 2 * (len(f"{THOUGHT}yes".encode()) + 1)


def test_left_out_of_the_answer(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, f"{THOUGHT}yes")
    choice = choice_of(ask(qwen, include_reasoning=False))
    assert choice["message"] == {"role": "assistant", "content": "yes", "refusal": None, "annotations": []}
    assert joined(events(ask(qwen, include_reasoning=False, stream=True))) == told(choice)


@pytest.mark.parametrize(
    ("body", "closed"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "high"}, False),
    ],
)
def test_thinking_turned_off(qwen: Running, body: Any, closed: bool) -> None:
    assert prompt_of(qwen, **body).endswith("<think>\n\n</think>\n\n") == closed


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"reasoning_effort": "most"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"mood": 1}}, "chat_template_kwargs.mood"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": [[[]]] * 2000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_what_is_wrong_is_named(qwen: Running, body: Any, param: str) -> None:
    response = ask(qwen, **body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize("effort", ["none", "low"])
def test_effort_that_the_model_can_not_heed(opened: Running, effort: str) -> None:
    error = error_of(ask(opened, reasoning_effort=effort))
    assert (error["param"], "always reasons" in error["message"]) == ("reasoning_effort", True)


def test_earlier_thoughts_go_to_the_template(qwen: Running) -> None:
    turns = [*HI, {"role": "assistant", "content": "yes", "reasoning": "hm"}, *HI]
    assert "<think>\nhm\n</think>\n\nyes<|im_end|>" in prompt_of(qwen, messages=turns)


def test_an_answer_is_continued(qwen: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {
        "model": "tiny/llama",
        "messages": [*HI, {"role": "assistant", "content": "Once upon"}],
        "continue_final_message": True,
    }
    assert prompt_of(qwen, **body).endswith("<|im_start|>assistant\nOnce upon")
    says(monkeypatch, " a time")
    assert told(choice_of(ask(qwen, **body)))["content"] == " a time"


def test_an_answer_that_is_continued_is_no_reasoning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though this model's reasoning has no marker before it."""
    settings = settings_for(write_model(tmp_path, OPENED))
    settings = replace(settings, chat=replace(settings.chat, reasoning_parser="deepseek_r1"))
    with serving(tmp_path, settings=settings) as running:
        says(monkeypatch, "hm</think>yes")
        assert told(choice_of(ask(running)))["reasoning"] == "hm"
        body = {
            "model": "tiny/llama",
            "messages": [*HI, {"role": "assistant", "content": "Once"}],
            "continue_final_message": True,
        }
        says(monkeypatch, " upon")
        assert told(choice_of(ask(running, **body)))["content"] == " upon"


def test_a_turn_that_is_not_opened(qwen: Running) -> None:
    assert prompt_of(qwen, add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_special_tokens_around_the_prompt(server: Running) -> None:
    assert prompt_of(server, add_special_tokens=True) == prompt_of(server)  # this tokenizer adds none


# The form holds once the thoughts are over: a random model, held by the grammar alone.


@pytest.mark.parametrize("seed", range(3))
def test_thoughts_then_a_form(opened: Running, seed: int) -> None:
    """Most random thoughts never end; those that do are followed by what was asked for."""
    bias = {str(byte): 8 for byte in set(b"</think>")}
    whole = told(choice_of(ask(opened, response_format=FORM, seed=seed, logit_bias=bias, max_tokens=200)))
    assert whole["content"] == "" if whole["finish_reason"] == "length" else json.loads(whole["content"])["n"] in (1, 2)


@pytest.mark.parametrize("seed", range(3))
def test_without_thoughts_the_form_comes_at_once(qwen: Running, seed: int) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    whole = told(choice_of(ask(qwen, response_format=FORM, seed=seed, **off)))
    assert json.loads(whole["content"])["n"] in (1, 2)
    assert whole["reasoning"] == ""


@pytest.mark.parametrize("seed", range(3))
def test_without_thoughts_the_call_comes_at_once(qwen: Running, seed: int) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    whole = told(choice_of(ask_with_tools(qwen, tools=[LOOK], tool_choice="required", seed=seed, **off)))
    assert whole["tool_calls"]
    assert (whole["content"], whole["reasoning"]) == ("", "")
