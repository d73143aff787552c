"""The access log: a line of JSON a request, whatever became of it, and not a word of a client's unless that was asked for."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemill_server.api import access_log
from pagemill_server.api.app import make_app
from pagemill_server.api.record import MAX_CONTENT, prompt_of
from pagemill_server.api.service import Service
from tests.server.api.running import NAME, Running, serving, until

Lines = Callable[[], list[dict[str, Any]]]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"prompt": "abc", "max_tokens": 4, "ignore_eos": True}
HI = [{"role": "user", "content": "hi"}]

DEEP = b"[" * 400 + b"]" * 400  # more than what writes JSON takes, and less than what reads it


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The log's lines so far, of INFO and above."""
    caplog.set_level(logging.INFO, "pagemill.access")

    def read() -> list[dict[str, Any]]:
        return [json.loads(record.getMessage()) for record in caplog.records if record.name == "pagemill.access"]

    return read


def one(lines: Lines) -> dict[str, Any]:
    """A line is written when the answer is over, which its client may see before."""
    until(lambda: len(lines()) >= 1)
    (line,) = lines()
    return line


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(server: Running, lines: Lines, stream: bool) -> None:
    with server.client() as client:
        body = BODY | {"stream": stream, "n": 2, "prompt": ["abc", "abcd"]}
        client.post(COMPLETIONS, json=body, headers={"x-request-id": "mine"})
    line = one(lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line.pop("id").startswith("cmpl-")
    assert 0 < line.pop("first_token_ms") <= line.pop("ms")
    assert line == {
        "request_id": "mine",
        "method": "POST",
        "path": COMPLETIONS,
        "status": 200,
        "outcome": "ok",
        "key": None,
        "model": NAME,
        "stream": stream,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 16,
        "finish_reasons": ["length"] * 4,
    }


def test_what_the_cache_had(server: Running, lines: Lines) -> None:
    with server.client() as client:
        for _ in range(2):
            client.post(COMPLETIONS, json=BODY | {"prompt": "the same words, more than a block of them " * 3})
    until(lambda: len(lines()) == 2)
    assert [line["cached_tokens"] for line in lines()] == [0, 112]


def test_a_key_is_named(tiny: Path, lines: Lines) -> None:
    with serving(tiny, api_keys=("one", "two")) as server, server.client() as client:
        client.get("/v1/models", headers={"authorization": "Bearer two"})
        client.get("/v1/models", headers={"authorization": "Bearer three"})
    assert [(line["key"], line["status"], line["outcome"]) for line in lines()] == [
        ("key2", 200, "ok"),
        (None, 401, "invalid_api_key"),
    ]


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "outcome", "route"),
    [
        ("POST", COMPLETIONS, b"{", 400, "invalid_json", COMPLETIONS),
        ("POST", COMPLETIONS, b'{"prompt": "a", "model": "x"}', 404, "model_not_found", COMPLETIONS),
        ("GET", "/v1/models/x", b"", 404, "model_not_found", "/v1/models/{name:path}"),
        ("GET", "/no/such?route=1", b"", 404, "unknown_url", None),
        ("GET", CHAT, b"", 405, "invalid_request_error", CHAT),
    ],
)
def test_a_refusal(
    server: Running, lines: Lines, method: str, path: str, content: bytes, status: int, outcome: str, route: str | None
) -> None:
    with server.client() as client:
        client.request(method, path, content=content)
    line = one(lines)
    assert (line["status"], line["outcome"], line["path"]) == (status, outcome, route)


def test_a_client_that_goes(idle_server: Running, lines: Lines) -> None:
    with (
        idle_server.client() as client,
        client.stream("POST", COMPLETIONS, json=BODY | {"max_tokens": 4000, "stream": True}) as response,
    ):
        next(response.iter_lines())
    line = one(lines)
    assert (line["status"], line["outcome"]) == (200, "client_gone")
    assert 0 < line["completion_tokens"] < 4000


def test_a_client_that_goes_before_its_answer(idle_server: Running, lines: Lines) -> None:
    with socket.create_connection(("127.0.0.1", idle_server.port)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        until(lambda: idle_server.service.in_flight == 1)
    line = one(lines)
    assert (line["status"], line["outcome"]) == (None, "client_gone")


def test_what_is_no_http(server: Running, lines: Lines) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"hello\r\n\r\n")
        received = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    line = one(lines)
    assert (line["status"], line["outcome"], line["path"]) == (400, "invalid_http", None)
    assert f"x-request-id: {line['request_id']}\r\n" in received


def test_probes_are_quiet_until_they_fail(server: Running, lines: Lines) -> None:
    with server.client() as client:
        for path in ("/health", "/ready", "/metrics", "/version"):
            client.get(path)
        client.post("/health")
    assert one(lines)["status"] == 405


def test_a_loading_server_is_quiet_too(tiny: Path, lines: Lines) -> None:
    with serving(tiny, loaded=False) as server, server.client() as client:
        assert client.get("/ready").status_code == 503
    assert not lines()


def test_a_bug_is_told_without_its_words(
    tiny: Path, lines: Lines, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(asked: str) -> str:
        raise RuntimeError(f"no {asked}")

    with serving(tiny) as server, server.client() as client:
        monkeypatch.setattr(server.service, "name_of", broken)
        response = client.post(COMPLETIONS, json=BODY | {"model": "MARKER"}, headers={"x-request-id": "mine"})
        assert response.status_code == 500
    assert one(lines)["outcome"] == "server_error"
    (bug,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "request mine failed: RuntimeError" in bug.getMessage()
    assert "in broken" in bug.getMessage()
    assert "MARKER" not in caplog.text


def test_a_bug_in_the_middle_of_a_stream(
    tiny: Path, lines: Lines, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tiny) as server, server.client() as client:
        monkeypatch.setattr("pagemill_server.api.completions.Completions.closing", None)
        response = client.post(COMPLETIONS, json=BODY | {"stream": True}, headers={"x-request-id": "mine"})
    assert '"error"' in response.text
    assert response.text.endswith("data: [DONE]\n\n")
    line = one(lines)
    assert (line["status"], line["outcome"]) == (200, "server_error")
    assert "request mine failed: TypeError" in caplog.text


def test_lines_are_json_and_nothing_else() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(access_log.LogFormat())
    for name, message in (("pagemill.access", '{"a": 1}'), ("pagemill_server.serve", "ready")):
        handler.handle(logging.LogRecord(name, logging.INFO, "", 0, message, (), None))
    first, second = stream.getvalue().splitlines()
    assert json.loads(first) == {"a": 1}
    assert second.endswith("INFO pagemill_server.serve ready")


# What a client says stays out of everything that is written down.

MARKER = "Mark3rOfTheCl13nt"


def everything_said(service: Service) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Requests with the marker in every place that has room for words: method, path, what httpx sends."""
    headers = {
        "authorization": f"Bearer {MARKER}",
        "x-client-id": MARKER,
        "user-agent": MARKER,
        f"x-{MARKER}": MARKER,
        "cookie": MARKER,
        "traceparent": MARKER,
        "tracestate": f"a={MARKER}",
        "content-type": MARKER,
        "x-request-id": f"{MARKER} with a space",
    }
    for path in (
        f"/{MARKER}",
        f"/v1/models/{MARKER}",
        f"/v1/models?{MARKER}=1",
        f"/health?{MARKER}",
        f"/v1/%ff{MARKER}",
    ):
        for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD"):
            yield method, path, {"headers": headers}
    bodies: list[Any] = [
        {"model": MARKER},
        {MARKER: 1},
        {"prompt": MARKER, "messages": MARKER, "input": MARKER},
        {"prompt": MARKER},
        {"prompt": [MARKER, 1]},
        {"prompt": {MARKER: MARKER}},
        {"prompt": "a", "temperature": MARKER},
        {"prompt": "a", "stop": [MARKER], "user": MARKER, "cache_salt": MARKER},
        {"prompt": "a", "logit_bias": {MARKER: 1}},
        {"prompt": MARKER, "response_format": {"type": MARKER}},
        {"prompt": MARKER, "structured_outputs": {"choice": [MARKER], "regex": MARKER}},
        {"prompt": MARKER, "structured_outputs": {"regex": f"({MARKER}"}},
        {"prompt": MARKER, "structured_outputs": {"grammar": MARKER}},
        {"prompt": MARKER, "structured_outputs": {"json": {"type": MARKER}}},
        {"input": MARKER, "encoding_format": MARKER},
        {"input": MARKER, "instructions": MARKER},
        {"model": "tiny/llama", "messages": [{"role": MARKER, "content": MARKER}]},
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": MARKER}],
            "metadata": {MARKER: MARKER},
            "user": MARKER,
        },
        {"model": "tiny/llama", "messages": [{"role": "user", "content": [{"type": MARKER, MARKER: MARKER}]}]},
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": MARKER}],
            "chat_template_kwargs": {MARKER: MARKER},
        },
        {"model": "tiny/llama", "messages": [{"role": "user", "content": MARKER}], "tools": [tool(MARKER)]},
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": MARKER}],
            "tools": [tool(f"{MARKER} !")],
            "tool_choice": MARKER,
        },
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": MARKER}],
            "response_format": schema({"type": MARKER}),
        },
        {
            "model": "tiny/llama",
            "messages": [{"role": "user", "content": MARKER}],
            "response_format": schema({"enum": [MARKER]}),
        },
    ]
    for path in posts(service):
        for body in bodies:
            for extra in ({}, {"stream": True}):
                yield "POST", path, {"headers": headers, "json": {"max_tokens": 2} | body | extra}
        for content in (MARKER, f'{{"prompt": "{MARKER}', f'"{MARKER}"', f'{{"prompt": "{MARKER}\\ud800"}}'):
            yield "POST", path, {"headers": headers, "content": content.encode()}
        yield "POST", path, {"headers": headers, "content": b"\xff" + MARKER.encode()}
        yield "POST", path, {"headers": headers, "content": b'{"prompt": "\xff' + MARKER.encode() + b'"}'}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": MARKER, "parameters": {"type": "object"}}}


def schema(body: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": MARKER, "schema": body}}


def posts(service: Service) -> list[str]:
    return [route.path for route in make_app(service).routes if "POST" in (route.methods or ())]


def test_nothing_that_a_client_says_is_written_down(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    statuses = set()
    for keys in ((), ("another", MARKER)):
        with serving(tiny, api_keys=keys) as server, server.client() as client:
            noisy = [logging.getLogger(name) for name in ("httpx", "httpcore")]  # the client's own, of this test
            for logger in noisy:
                logger.setLevel(logging.WARNING)
            for method, path, options in everything_said(server.service):
                statuses.add(client.request(method, path, **options).status_code)
            for data in (b"GET /%s\xff HTTP/1.1\r\n\r\n", b"%s\r\n\r\n", b"GET / HTTP/1.1\r\n%s\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", server.port)) as raw:
                    raw.settimeout(30)
                    raw.sendall(data % MARKER.encode())
                    raw.recv(65536)
            server.wait_idle()
            assert MARKER not in server.service.metrics.render().decode()
    assert {200, 400, 404, 405} <= statuses
    assert max(statuses) < 500
    assert len(caplog.records) > 200
    for record in caplog.records:
        assert MARKER.lower() not in f"{record.getMessage()} {record.exc_text} {record.exc_info}".lower()


# Unless it was asked for.


@pytest.fixture(scope="module")
def telling(tiny: Path) -> Iterator[Running]:
    with serving(tiny, log_content=True) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_output_are_logged_where_they_may_be(telling: Running, lines: Lines, stream: bool) -> None:
    with telling.client() as client:
        body = {"model": "tiny/llama", "messages": HI, "max_tokens": 8, "ignore_eos": True, "n": 2, "seed": 1}
        whole = client.post(CHAT, json=body).json()
        client.post(CHAT, json=body | {"stream": stream})
    until(lambda: len(lines()) == 2)
    for line in lines():
        assert json.loads(line["prompt"]) == HI
        assert line["output"] == [choice["message"]["content"] for choice in whole["choices"]]


def test_the_prompt_of_a_refusal_is_logged_too(telling: Running, lines: Lines) -> None:
    with telling.client() as client:
        client.post(COMPLETIONS, json=BODY | {"prompt": "wrong", "n": 0})
    line = one(lines)
    assert (line["status"], line["prompt"], line["output"]) == (400, "wrong", [])


@pytest.mark.parametrize("field", ["messages", "prompt", "input"])
def test_a_prompt_that_can_not_be_spelled_is_the_mistake_that_it_is(telling: Running, lines: Lines, field: str) -> None:
    with telling.client() as client:
        assert client.post("/v1/chat/completions", content=b'{"%b": %b}' % (field.encode(), DEEP)).status_code == 400
    assert DEEP.decode() in one(lines)["prompt"]


def test_it_is_cut(telling: Running, lines: Lines) -> None:
    with telling.client() as client:
        client.post(COMPLETIONS, json=BODY | {"prompt": "x" * 100_000})
    assert one(lines)["prompt"] == "x" * MAX_CONTENT


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (b'{"prompt": "a"}', "a"),
        (b'{"prompt": ["a", "b"]}', '["a","b"]'),
        (b'{"input": "e"}', "e"),
        (b'{"model": "tiny/llama", "messages": []}', "[]"),
        (b'{"tokens": [1]}', None),
        (b"[]", None),
        (b"{", None),
        pytest.param(
            b'{"model": "tiny/llama", "messages": ' + DEEP + b"}",
            '{"model": "tiny/llama", "messages": ' + DEEP.decode() + "}",
            id="deep",
        ),
    ],
)
def test_what_counts_as_a_prompt(body: bytes, prompt: str | None) -> None:
    assert prompt_of(body) == prompt
