"""Every body that a client can send wrong is a 4xx with OpenAI's error object that names what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.api.asking import CHAT, COMPLETIONS, HI, error_of, post
from tests.server.api.running import NAME, Running, serving
from tests.server.tiny import write_tiny_llama


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": "a"} trailing',
        b"prompt=a&max_tokens=1",
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_is_no_json_object(idle_server: Running, path: str, body: bytes) -> None:
    response = post(idle_server, path, content=body)
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_json"


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "1"}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": 1e20}, "max_tokens"),
    ({"max_tokens": [1]}, "max_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 1001}, "stop"),
    ({"stop": 1}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"other": True}}, "stream_options.other"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"frequency_penalty": "0.5"}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"repetition_penalty": 11}, "repetition_penalty"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"264": 1}}, "logit_bias"),  # the first id beyond the embedding
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "1"}}, "logit_bias.1"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"min_tokens": 10**6}, "min_tokens"),
    ({"stop_token_ids": [264]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [2**63]}, "stop_token_ids"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"priority": 0.5}, "priority"),
    ({"priority": 2**31}, "priority"),
    ({"deadline_ms": 0}, "deadline_ms"),
    ({"deadline_ms": -5}, "deadline_ms"),
    ({"deadline_ms": 1e12}, "deadline_ms"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"cache_salt": "a" * 1025}, "cache_salt"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"user": 5}, "user"),
    ({"no_such_key": 1}, "no_such_key"),
    ({"logits_processors": ["os.system"]}, "logits_processors"),  # code of the client's runs nowhere
    ({"model": 5}, "model"),
]
ONLY_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"model": "tiny/llama", "messages": None}, "messages"),
    ({"model": "tiny/llama", "messages": []}, "messages"),
    ({"model": "tiny/llama", "messages": "hi"}, "messages"),
    ({"model": "tiny/llama", "messages": HI * 10_001}, "messages"),
    ({"model": "tiny/llama", "messages": [1]}, "messages[0]"),
    ({"model": "tiny/llama", "messages": [{}]}, "messages[0].role"),
    ({"model": "tiny/llama", "messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"model": "tiny/llama", "messages": [{"role": "user"}]}, "messages[0].content"),
    ({"model": "tiny/llama", "messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"model": "tiny/llama", "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"model": "tiny/llama", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
    ),
    ({"model": "tiny/llama", "messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content"),
    ({"model": "tiny/llama", "messages": [{"role": "user", "content": "a", "mood": "x"}]}, "messages[0].mood"),
    (
        {"model": "tiny/llama", "messages": [*HI, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        "messages[1].tool_calls[0].function",
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"function_call": {"name": "a"}}, "function_call"),
    ({"functions": [{"name": "a"}], "function_call": {"name": "b"}}, "function_call"),
    ({"functions": [{"name": "a"}], "function_call": {"name": "a", "x": 1}}, "function_call"),
    ({"functions": [{"name": "a"}], "function_call": "required"}, "function_call"),
    ({"functions": [{"name": "a", "parameters": {"type": "string"}}]}, "functions[0].parameters"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"echo": True}, "echo"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 10**8}, "max_completion_tokens"),
    ({"prompt": "a"}, "prompt"),
]
ONLY_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, 1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [[[1]]]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [264]}, "prompt"),  # the first id beyond the embedding
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [2**70]}, "prompt"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": "a" * 4096}, "prompt"),
    ({"prompt": [[1], [1] * 5000]}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "end"}, "suffix"),
    ({"echo": 1}, "echo"),
    ({"echo": True, "max_tokens": -1}, "max_tokens"),
    ({"n": 128, "prompt": ["a"] * 5}, "n"),
    ({"model": "tiny/llama", "messages": HI}, "messages"),
]


@pytest.mark.parametrize(("change", "param"), [*SHARED, *ONLY_CHAT])
def test_chat(idle_server: Running, change: dict[str, Any], param: str) -> None:
    response = post(idle_server, CHAT, json={"model": "tiny/llama", "messages": HI} | change)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert param.split(".")[-1] in error_of(response)["message"]


@pytest.mark.parametrize(("change", "param"), [*SHARED, *ONLY_COMPLETIONS])
def test_completions(idle_server: Running, change: dict[str, Any], param: str) -> None:
    response = post(idle_server, COMPLETIONS, json={"prompt": "a"} | change)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("change", "spelled"),
    [({"use_beam_search": True}, "send false or null"), ({"bad_words": ["a"]}, "send [] or null")],
)
def test_what_may_be_sent_instead_is_spelled_as_json(
    idle_server: Running, change: dict[str, Any], spelled: str
) -> None:
    assert spelled in error_of(post(idle_server, COMPLETIONS, json={"prompt": "a"} | change))["message"]


def test_an_answer_that_does_not_fit_names_both_numbers(idle_server: Running) -> None:
    error = error_of(post(idle_server, COMPLETIONS, json={"prompt": "abc", "max_tokens": 4094}))
    assert all(number in error["message"] for number in ("3 tokens", "4094", "4096", "4093"))
    assert error["code"] == "context_length_exceeded"


def test_the_longest_answer_that_fits_is_taken(tiny_context_server: Running) -> None:
    body = {"prompt": "abc", "max_tokens": 61, "ignore_eos": True}
    assert post(tiny_context_server, COMPLETIONS, json=body).json()["usage"]["completion_tokens"] == 61


@pytest.mark.parametrize("stream", [False, True])
def test_the_templates_own_refusal(tmp_path: Path, stream: bool) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('Conversation roles must alternate') }}")
    with serving(folder) as server:
        response = post(server, CHAT, json={"model": "tiny/llama", "messages": HI, "stream": stream})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["message"], error["param"]) == ("Conversation roles must alternate", "messages")


def test_a_model_without_a_template(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    with serving(folder) as server:
        response = post(server, CHAT, json={"model": "tiny/llama", "messages": HI})
        assert response.status_code == 400
        assert error_of(response)["code"] == "no_chat_template"
        assert post(server, COMPLETIONS, json={"prompt": "a", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(("more", "code"), [({}, "missing_required_parameter"), ({"model": None}, "invalid_value")])
def test_a_conversation_names_its_model(idle_server: Running, more: dict[str, Any], code: str) -> None:
    response = post(idle_server, CHAT, json={"messages": HI} | more)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == ("model", code)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model(idle_server: Running, path: str, stream: bool) -> None:
    body = ({"messages": HI} if path == CHAT else {"prompt": "a"}) | {"model": "gpt-9", "stream": stream}
    response = post(idle_server, path, json=body)
    assert response.status_code == 404
    error = error_of(response)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert NAME in error["message"]
