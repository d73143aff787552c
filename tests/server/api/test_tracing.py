"""Spans, as a real collector gets them over HTTP: what they say, where they hang, and that nothing waits for a collector."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect
from pagemill_server import serve
from pagemill_server.api import tracing
from pagemill_server.cli import parse
from tests.server.api.collector import Collector, attributes, collecting
from tests.server.api.running import NAME, until
from tests.server.api.test_access_log import MARKER, everything_said
from tests.server.test_serve import ENDLESS, Living, living
from tests.server.tiny import write_tiny_llama

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT: dict[str, Any] = {
    "model": "tiny/llama",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
    "ignore_eos": True,
}
Traced = tuple[Living, httpx.Client, Collector]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_BATCH_SECONDS", 0.02)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


@pytest.fixture
def traced(files: ModelFiles) -> Iterator[Traced]:
    with collecting() as collector, living(files, otlp_traces_endpoint=f"{collector.url}/v1/traces") as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        yield it, client, collector


def only_root(collector: Collector) -> Span:
    until(lambda: len(collector.roots) == 1)
    return collector.roots[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_with_its_stages_below(traced: Traced, stream: bool) -> None:
    _, client, collector = traced
    body = CHAT | {"n": 2, "stream": stream}
    response = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "of-mine.1"})
    assert response.status_code == 200
    root = only_root(collector)
    said = attributes(root)
    assert root.name == "POST /v1/chat/completions"
    assert root.parent_span_id == b""
    assert (said["http.request.method"], said["http.route"]) == ("POST", "/v1/chat/completions")
    assert said["http.response.status_code"] == 200
    assert said["pagemill.request_id"] == "of-mine.1"
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("chat", NAME)
    assert said["gen_ai.response.id"].startswith("chatcmpl-")
    assert said["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert said["gen_ai.usage.output_tokens"] == 16
    assert said["gen_ai.usage.input_tokens"] > 10
    assert 0 <= said["gen_ai.latency.time_in_queue"] < said["gen_ai.latency.time_to_first_token"]
    assert said["gen_ai.latency.time_to_first_token"] < said["gen_ai.latency.e2e"]
    assert root.status.code == Status.STATUS_CODE_UNSET
    stages = collector.below(root)
    assert set(stages) == {"queue", "prefill", "decode"}
    times = [stages["queue"].start_time_unix_nano]
    times += [stages[name].end_time_unix_nano for name in ("queue", "prefill", "decode")]
    assert [root.start_time_unix_nano, *times, root.end_time_unix_nano] == sorted([
        root.start_time_unix_nano, *times, root.end_time_unix_nano
    ])  # fmt: skip
    assert stages["prefill"].start_time_unix_nano == stages["queue"].end_time_unix_nano
    assert {span.trace_id for span in stages.values()} == {root.trace_id}
    assert collector.paths[0] == "/v1/traces"
    resource = {
        pair.key: pair.value.string_value for pair in collector.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "pagemill"


def test_it_hangs_below_the_callers_span(traced: Traced) -> None:
    _, client, collector = traced
    client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
    root = only_root(collector)
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, CALLER)


def test_what_the_caller_does_not_sample_is_not_sent(traced: Traced) -> None:
    _, client, collector = traced
    client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
    client.post("/v1/completions", json={"prompt": "a"})
    assert only_root(collector).trace_id.hex() != TRACE


@pytest.mark.parametrize("header", ["", "x" * 9000, f"00-{'0' * 32}-{CALLER}-01", f"zz-{TRACE}-{CALLER}-01"])
def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(traced: Traced, header: str) -> None:
    _, client, collector = traced
    assert client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": header}).status_code == 200
    assert only_root(collector).parent_span_id == b""


def test_probes_have_none(traced: Traced) -> None:
    _, client, collector = traced
    for path in ("/health", "/ready", "/metrics", "/version"):
        client.get(path)
    client.post("/v1/completions", json={"prompt": "a"})
    assert only_root(collector).name == "POST /v1/completions"


def test_a_clients_mistake_is_no_error_of_ours(traced: Traced) -> None:
    _, client, collector = traced
    response = client.post("/v1/completions", content=b"{")
    root = only_root(collector)
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert attributes(root)["error.type"] == response.json()["error"]["code"] == "invalid_json"
    assert not collector.below(root)


def test_a_failure_of_ours_is_an_error(traced: Traced) -> None:
    it, client, collector = traced
    loaded = it.life.service.loaded
    assert loaded is not None
    with client.stream("POST", "/v1/completions", json=ENDLESS) as response:
        lines = response.iter_lines()
        next(lines)
        loaded.engine._engine._runner = None  # type: ignore[attr-defined]  every step now fails
        assert "[DONE]" in list(lines)[-2]
    root = only_root(collector)
    assert attributes(root)["http.response.status_code"] == 200
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes(root)["error.type"] == root.status.message == "server_error"


def test_a_client_that_goes(traced: Traced) -> None:
    it, client, collector = traced
    with client.stream("POST", "/v1/completions", json=ENDLESS) as response:
        next(response.iter_lines())
    said = attributes(only_root(collector))
    assert said["error.type"] == "client_gone"
    assert said["gen_ai.usage.output_tokens"] > 0
    until(lambda: it.running() == 0)


def test_the_last_spans_leave_when_the_server_ends(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_BATCH_SECONDS", 3600)
    with collecting() as collector:
        with living(files, otlp_traces_endpoint=f"{collector.url}/v1/traces") as (_, client):
            until(lambda: client.get("/ready").status_code == 200)
            client.post("/v1/completions", json={"prompt": "a"})
            assert not collector.roots
        assert len(collector.roots) == 1


def test_a_collector_that_is_away_costs_a_line(
    files: ModelFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_EXPORT_SECONDS", 0.1)  # no second attempt
    with socket.create_server(("127.0.0.1", 0)) as away:
        port = away.getsockname()[1]
    with living(files, otlp_traces_endpoint=f"http://127.0.0.1:{port}/v1/traces") as (it, client):
        until(lambda: client.get("/ready").status_code == 200)
        for _ in range(20):
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        until(lambda: "spans lost" in caplog.text)
    assert it.error is None
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in said] == [tracing.__name__]
    assert "--otlp-traces-endpoint" in said[0].getMessage()
    assert not said[0].exc_info


def test_a_collector_that_never_answers_does_not_keep_the_server(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with living(files, otlp_traces_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}/x") as (it, client):
            until(lambda: client.get("/ready").status_code == 200)
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        assert it.error is None
        assert any(thread.name == "traces" for thread in threading.enumerate())
    until(lambda: all(thread.name != "traces" for thread in threading.enumerate()))


def test_nothing_that_a_client_says_is_in_a_span(traced: Traced) -> None:
    it, client, collector = traced
    asked = sum(
        bool(client.request(method, path, **options).headers["x-request-id"])
        for method, path, options in everything_said(it.life.service)
    )
    until(lambda: len(collector.roots) > asked // 2)
    client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "the.last"})
    until(lambda: any(b"the.last" in body for body in collector.bodies))
    assert not any(MARKER.encode() in body for body in collector.bodies)


@pytest.mark.parametrize("keeps", [False, True])
def test_content_is_only_said_where_it_may_be(files: ModelFiles, keeps: bool) -> None:
    with (
        collecting() as collector,
        living(files, otlp_traces_endpoint=f"{collector.url}/v1/traces", log_content=keeps) as (_, client),
    ):
        until(lambda: client.get("/ready").status_code == 200)
        answer = client.post("/v1/completions", json={"prompt": "MARKER", "max_tokens": 5, "ignore_eos": True})
        said = attributes(only_root(collector))
    assert said.get("pagemill.prompt") == ("MARKER" if keeps else None)
    assert said.get("pagemill.output") == ([answer.json()["choices"][0]["text"]] if keeps else None)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_base_url_gets_opentelemetrys_path(given: str, used: str) -> None:
    assert parse(["some/model", "--otlp-traces-endpoint", given], {}).server.otlp_traces_endpoint == used


@pytest.mark.parametrize(
    "wrong", ["collector:4318", "grpc://c:4317", "http://", "http://c:99999", "http://c x", "http://[", " "]
)
def test_what_is_no_url(wrong: str) -> None:
    with pytest.raises(PagemillError, match="--otlp-traces-endpoint") as error:
        parse(["some/model", "--otlp-traces-endpoint", wrong], {})
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION


def test_what_the_environment_says_wrong_is_a_line(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(PagemillError, match="traces can't be sent") as error:
        serve._traces("http://127.0.0.1:1/v1/traces")
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION


def test_the_sdk_is_only_imported_where_it_is_wanted() -> None:
    code = "import sys, pagemill_server.serve; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    root = Path(__file__).parents[3]
    path = ":".join(str(root / folder) for folder in (".", "server", "kernels"))
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, check=False).returncode == 0
