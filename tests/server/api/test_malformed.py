"""Everything that a client can send wrong is a 4xx with OpenAI's error object that names what is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagemill_server.api import http_protocol
from tests.server.api.running import NAME, Running, serving
from tests.server.tiny import write_tiny_llama

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return dict(body["error"])


def post(server: Running, path: str, **options: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(path, **options)


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


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/v1/chat/completions/", "/v1/models/", "/%0d%0a", "/health/x"]
)
def test_an_unknown_route(idle_server: Running, path: str) -> None:
    with idle_server.client() as client:
        response = client.get(path)
    assert response.status_code == 404
    error_of(response)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("DELETE", COMPLETIONS, "POST"), ("POST", "/health", "GET"), ("PUT", "/v1/models", "GET")],
)
def test_a_wrong_method(idle_server: Running, method: str, path: str, allowed: str) -> None:
    with idle_server.client() as client:
        response = client.request(method, path)
    assert response.status_code == 405
    assert allowed in response.headers["allow"]
    error_of(response)


def test_a_body_too_large(tiny: Any) -> None:
    with serving(tiny, max_body_bytes=1000) as server:
        told = post(server, COMPLETIONS, json={"prompt": "a" * 1000})
        untold = post(server, COMPLETIONS, content=iter([b" " * 600, b" " * 600]))  # chunked: no length in front
        for response in (told, untold):
            assert response.status_code == 413
            assert error_of(response)["code"] == "body_too_large"
        assert post(server, COMPLETIONS, json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_client_that_is_refused_while_it_sends_gets_its_answer(tiny: Any) -> None:
    """A close with unread bytes is a reset, and some never see the answer that went before it."""
    with serving(tiny, max_body_bytes=1 << 20) as server:
        status, body = exchange(
            server, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + b" " * 3_000_000
        )
        assert status.startswith(b"HTTP/1.1 413 ")
        assert body["error"]["code"] == "body_too_large"


def test_a_client_that_waits_to_be_asked_is_refused_before_it_sends(tiny: Any) -> None:
    with serving(tiny, max_body_bytes=1000) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n"
        assert exchange(server, head)[0].startswith(b"HTTP/1.1 413 ")


def test_an_endless_body_is_refused_while_it_arrives(tiny: Any) -> None:
    with serving(tiny, max_body_bytes=1000) as server, socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000000\r\n\r\n {")
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_stalls_is_not_waited_for(tiny: Any) -> None:
    with serving(tiny, body_stall_seconds=0.2) as server:
        status, body = exchange(server, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert status.startswith(b"HTTP/1.1 408 ")
        assert body["error"]["code"] == "body_timeout"
        server.wait_idle()


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_head_that_stalls_is_not_waited_for(
    idle_server: Running, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.settimeout(30)
        if before:
            raw.sendall(before)
            assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost:")
        received = b"".join(iter(lambda: raw.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 408 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_a_connection_that_says_nothing_is_closed(idle_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.settimeout(30)
        assert raw.recv(1) == b""


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("requests", [1, 2])
def test_an_offer_to_upgrade_is_ignored(idle_server: Running, protocol: bytes, requests: int) -> None:
    """Java's HTTP client, and so LangChain4j and Spring AI, offer HTTP/2 with every request; its body must not get lost."""
    body = b'{"prompt": "\\r\\nUpgrade: x", "max_tokens": 1}'
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nHTTP2-Settings: AAMAAABk\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + offer + b"content-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.settimeout(30)
        for _ in range(requests):
            raw.sendall(head + body)
            received = raw.recv(65536)
            assert received.startswith(b"HTTP/1.1 200 ")
            assert json.loads(received.partition(b"\r\n\r\n")[2])["usage"]["prompt_tokens"] == 12


def exchange(server: Running, data: bytes) -> tuple[bytes, Any]:
    """The status line and the body of what a raw connection gets back before it is closed."""
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(data)
        received = b""
        while part := raw.recv(65536):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    ],
)
def test_bad_http(idle_server: Running, data: bytes) -> None:
    status, body = exchange(idle_server, data)
    assert status.startswith(b"HTTP/1.1 400 ")
    assert body["error"]["code"] == "invalid_http"


def test_headers_without_end(idle_server: Running) -> None:
    status, body = exchange(idle_server, b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
    assert status.startswith(b"HTTP/1.1 431 ")
    assert "larger" in body["error"]["message"]
