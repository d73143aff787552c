"""`pagemill preflight` against a real hub over HTTP: what it finds and pins, what it fetches and what not, and how it says no."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pagemill import capacity, hub, preflight_command, preflight_progress
from pagemill.failures import Failure, FailureReason, PagemillError, parse_termination
from pagemill.preflight_command import preflight
from pagemill.preflight_report import Report, parse_report
from tests.pagemill.hub_server import HubServer, serve
from tests.pagemill.sample_models import write_folder, write_gguf

REPO = "org/tiny"
CPU = ("--device", "cpu", "--kv-cache-memory-bytes", "1MiB")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    folder = write_folder(tmp_path / "source", shards=2)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    with serve(HubServer(repos={REPO: files | {"tokenizer.json": b"{}" * 5000}})) as running:
        yield running


@pytest.fixture
def folder(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder; the environment is a pod's."""
    log = tmp_path / "termination-log"
    named = {"HF_ENDPOINT": server.url, "PAGEMILL_MODELS": str(tmp_path / "models"), "no_proxy": "127.0.0.1"}
    for name, text in {**named, "PAGEMILL_TERMINATION_LOG": str(log)}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "models"


def reported(folder: Path, *arguments: str) -> Report:
    assert preflight([*arguments]) == 0
    report = parse_report((folder.parent / "termination-log").read_text())
    assert report is not None
    return report


def refused(folder: Path, *arguments: str) -> Failure:
    """What is raised is what the operator reads."""
    with pytest.raises(PagemillError) as caught:
        preflight([*arguments])
    failure = parse_termination((folder.parent / "termination-log").read_text())
    assert failure == caught.value.failure
    return failure


def test_a_hubs_model_is_pinned_by_its_headers_alone(server: HubServer, folder: Path) -> None:
    report = reported(folder, REPO, *CPU)
    assert (report.revision, report.pinned) == (server.commit, f"hf://{REPO}@{server.commit}")
    assert report.fit == "Fits"
    assert report.capacity is not None
    assert report.capacity["kvCacheBytes"] <= 1 << 20
    assert "tokenizer.json" not in server.fetched(), "nothing that says nothing of its size"
    assert not folder.exists()


def test_of_weights_only_the_table_is_read(server: HubServer, folder: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    table, length = server.repos[REPO][name], 1 << 22
    server.repos[REPO][name] = table + bytes(length)
    reported(folder, REPO, *CPU)
    assert server.sent[name] < length // 2


def test_a_table_longer_than_the_first_read(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagemill.hub_headers._FIRST", 16)
    assert reported(folder, REPO, *CPU).fit == "Fits"
    server.ranges = False
    assert reported(folder, REPO, *CPU).fit == "Fits"


def test_a_gguf_whose_header_comes_in_pieces(
    server: HubServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagemill.hub_headers._FIRST_GGUF", 64)
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    server.repos["org/gguf"] = {"tiny.gguf": whole + bytes(1 << 20)}
    report = reported(folder, "org/gguf", *CPU)
    assert report.capacity is not None
    assert server.sent["tiny.gguf"] < 1 << 20
    server.repos["org/gguf"] = {"tiny.gguf": whole[: len(whole) // 2]}
    assert refused(folder, "org/gguf", *CPU).reason is FailureReason.MODEL_TRUNCATED


def test_a_file_shorter_than_its_table_says_is_told_by_the_models_name(server: HubServer, folder: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    server.repos[REPO][name] = server.repos[REPO][name][:-10]
    failure = refused(folder, REPO, *CPU)
    assert failure.reason is FailureReason.MODEL_TRUNCATED
    assert f"{REPO}@cccccccccccc/{name}" in failure.message


def test_a_shared_cache_gets_it_once(server: HubServer, folder: Path) -> None:
    report = reported(folder, REPO, "--fetch", *CPU)
    assert report.pinned is not None
    assert hub.recorded_commit(folder / "org" / f"tiny@{server.commit}") == server.commit
    first = server.fetched()
    assert set(first.values()) == {1}
    assert reported(folder, REPO, "--fetch", *CPU) == report
    assert server.fetched() == first


def test_what_was_fetched_before_needs_no_hub(server: HubServer, folder: Path) -> None:
    report = reported(folder, REPO, "--fetch", *CPU)
    server.answer = (503, b"")
    assert reported(folder, REPO, "--fetch", "--revision", server.commit, *CPU) == report
    assert refused(folder, REPO, "--fetch", *CPU).reason is FailureReason.HUB_UNREACHABLE, "main may have moved"


def test_a_known_revision_stays(server: HubServer, folder: Path) -> None:
    server.commit = "d" * 40
    report = reported(folder, REPO, "--revision", "d" * 40, *CPU)
    assert report.revision == "d" * 40
    assert any(f"/revision/{'d' * 40}" in seen.path for seen in server.seen)
    assert not any("/revision/main" in seen.path for seen in server.seen)


@pytest.mark.parametrize("model", [f"hf://{REPO}@v1", f"hf://{REPO}@refs/pr/1"])
def test_a_named_revision_is_pinned_too(server: HubServer, folder: Path, model: str) -> None:
    assert reported(folder, model, *CPU).pinned == f"hf://{REPO}@{server.commit}"


def test_a_model_on_this_machine_comes_first(server: HubServer, folder: Path) -> None:
    write_folder(folder / "org" / "tiny")
    report = reported(folder, REPO, *CPU)
    assert (report.revision, report.pinned, report.fit) == (None, None, "Fits")
    assert reported(folder, str(folder / "org" / "tiny"), *CPU).pinned is None
    assert server.seen == []


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize("fetch", [(), ("--fetch",)])
def test_a_gated_model(server: HubServer, folder: Path, code: int, fetch: tuple[str, ...]) -> None:
    server.token, server.refusal = "hf_right", code
    failure = refused(folder, REPO, *fetch, *CPU)
    assert failure.reason is FailureReason.GATED_MODEL
    assert "hfTokenSecretRef" in failure.message


def test_the_token_opens_it(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_right\n")
    assert reported(folder, REPO, *CPU).revision == server.commit


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("org/other", FailureReason.MODEL_NOT_FOUND),
        ("/nowhere/at/all", FailureReason.MODEL_NOT_FOUND),
        ("s3://bucket/model", FailureReason.INVALID_CONFIGURATION),
        ("org/pickled", FailureReason.UNSAFE_MODEL_FORMAT),
        ("org/strange", FailureReason.UNSUPPORTED_ARCHITECTURE),
    ],
)
def test_what_can_not_be_had(server: HubServer, folder: Path, model: str, reason: FailureReason) -> None:
    server.repos["org/pickled"] = {"pytorch_model.bin": b"\x80"}
    strange = json.dumps({"architectures": ["WhisperForConditionalGeneration"]}).encode()
    server.repos["org/strange"] = {**server.repos[REPO], "config.json": strange}
    assert refused(folder, model, *CPU).reason is reason


def test_a_gpu_of_unknown_size_refuses_nothing(folder: Path) -> None:
    assert reported(folder, REPO, "--max-model-len", "256") == Report(
        "Unknown", "c" * 40, f"hf://{REPO}@{'c' * 40}", None
    )


def test_what_does_not_fit_says_what_would(folder: Path) -> None:
    failure = refused(folder, REPO, "--memory", "36MiB", "--max-model-len", "256", "--max-num-seqs", "1")
    assert failure.reason is FailureReason.KV_CACHE_TOO_SMALL
    assert failure.suggestion["gpu.memoryGiB"]
    enough = f"{failure.suggestion['gpu.memoryGiB']}GiB"
    assert reported(folder, REPO, "--memory", enough, "--max-model-len", "256", "--max-num-seqs", "1").fit == "Fits"


def test_a_container_on_cpu_that_is_too_small_says_what_would_do(folder: Path) -> None:
    failure = refused(folder, REPO, "--device", "cpu", "--memory", "40MiB", "--kv-cache-memory-bytes", "64MiB")
    assert failure.reason is FailureReason.OUT_OF_MEMORY
    enough = str(failure.suggestion["resources.limits.memory"])
    assert reported(folder, REPO, "--device", "cpu", "--memory", enough, "--kv-cache-memory-bytes", "64MiB").capacity


def test_flags_of_the_server_that_say_nothing_of_memory_are_ignored(folder: Path) -> None:
    assert reported(folder, REPO, *CPU, "--served-model-name", "a", "b", "--port", "8000", "--no-such-flag").revision


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def small(path: Any) -> os.statvfs_result:
        found = list(real(path))
        found[4] = 1  # f_bavail: a block
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", small)
    failure = refused(folder, REPO, "--fetch", *CPU)
    assert failure.reason is FailureReason.DISK_FULL
    assert "larger cache" in failure.message
    assert not server.fetched()


def test_a_download_that_breaks_off_goes_on_by_itself(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_command, "_BETWEEN", 0.0)
    server.breaks = {name: 2000 for name in server.repos[REPO] if name.endswith(".safetensors")}
    assert reported(folder, REPO, "--fetch", *CPU).revision == server.commit


def test_a_download_says_how_far_it_is_and_ends_when_it_stands(server: HubServer, folder: Path) -> None:
    """In a process of its own: a real port, the real clock, and an end that nobody can catch."""
    name = "model-00001-of-00002.safetensors"
    server.breaks[name], server.stall = 50_000, threading.Event()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--fetch", "--progress-port", str(port), "--startup-timeout", "4"]
    program = f"from pagemill import hub, preflight_command as it; hub.CHUNK = 10_000; it.preflight({[REPO, *flags]!r})"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        told = ask_until(port, "Downloading")
        assert 0 < told["percent"] < 100
        assert told["bytesTotal"] == sum(map(len, server.repos[REPO].values()))
        output, errors = child.communicate(timeout=60)
        assert child.returncode == 1
    server.stall.set()
    failure = parse_termination((folder.parent / "termination-log").read_text())
    assert failure is not None
    assert failure.reason is FailureReason.LOAD_STALLED
    assert b"startup.timeoutSeconds" in errors
    assert b"% of it" in errors
    assert f"{REPO}: 0%".encode() in output or b"%, " in output


def ask_until(port: int, phase: str) -> dict[str, Any]:
    for _ in range(1000):
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            body: dict[str, Any] = json.loads(answer.read())
            if body["phase"] == phase and body["percent"]:
                assert answer.status == 503
                return body
        except OSError:
            pass
        finally:
            connection.close()
        threading.Event().wait(0.02)
    raise AssertionError("it never said how far it is")


def test_waiting_for_another_fetch_of_the_same_model_is_no_standstill(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_progress, "_LOOK", 0.01)
    folder.mkdir()
    progress, ends = preflight_progress.Progress("x"), list[Failure]()
    over = threading.Event()

    def end(failure: Failure) -> None:
        ends.append(failure)
        over.set()

    preflight_progress.end_when_it_stands(progress, 0.5, folder, end)
    for number in range(20):  # a second in which only the other one writes
        (folder / "model.part").write_bytes(bytes(number))
        threading.Event().wait(0.05)
    assert ends == []
    assert over.wait(30)
    assert ends[0].reason is FailureReason.LOAD_STALLED


def test_a_proxy_is_asked(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
        assert refused(folder, REPO, *CPU).reason is FailureReason.HUB_UNREACHABLE
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
    assert seen
    assert seen[0].startswith("http://hub.example/api/models/org/tiny")


def test_a_hub_with_a_certificate_of_its_own(
    server: HubServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process each: OpenSSL reads SSL_CERT_FILE when the context is made."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=hub"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serve(HubServer(repos=server.repos), context=context) as secure:
        monkeypatch.setenv("HF_ENDPOINT", secure.url)
        failure = refused(folder, REPO, *CPU)
        assert failure.reason is FailureReason.HUB_UNREACHABLE
        assert "CERTIFICATE_VERIFY_FAILED" in failure.message
        assert "set SSL_CERT_FILE to its authority's certificate" in failure.message
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert reported(folder, REPO, *CPU).revision == secure.commit


def test_it_starts_at_once(folder: Path) -> None:
    """It runs before every new template: nothing that takes time may come with it."""
    program = "import sys, pagemill.preflight_command; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "numpy", "yaml", "pydantic", "aiohttp", "kubernetes", "kopf", "pagemill_server", "asyncio"}
    assert heavy.isdisjoint(loaded)


@pytest.mark.parametrize("text", ["", "{}", '{"passed": 1}', '{"passed": {"fit": "Maybe"}}', "[" * 100_000])
def test_a_line_that_is_no_report(text: str) -> None:
    assert parse_report(text) is None


def test_a_report_survives_its_line() -> None:
    report = Report("Fits", "c" * 40, "hf://org/tiny@c", dict.fromkeys(capacity.NAMES, 3))
    assert parse_report("noise\n" + report.to_line() + "\n") == report
    assert parse_termination(report.to_line()) is None
