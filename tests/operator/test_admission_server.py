"""The webhook over real TLS: it waits for its certificate, takes a renewed one over, and answers as the API server reads it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pagemill_operator import __main__ as main_module
from pagemill_operator import admission_server
from pagemill_operator.admission import Verdict, judge
from pagemill_operator.admission_server import PATH, admitting
from tests.operator.manifests import manifest

SECONDS = 20.0


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_server, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def write_certificate(folder: Path, name: str) -> None:
    """As the kubelet swaps a mounted Secret: a new folder, then one link to it."""
    fresh = folder / f"..{name}"
    fresh.mkdir()
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    files = ["-keyout", str(fresh / "tls.key"), "-out", str(fresh / "tls.crt")]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *files, *subject], check=True, capture_output=True)
    link = folder / "..link"
    link.symlink_to(fresh.name)
    link.rename(folder / "..data")
    for file in ("tls.crt", "tls.key"):
        if not (folder / file).is_symlink():
            (folder / file).symlink_to(f"..data/{file}")


def serve(folder: Path, port: int, judged: Any = None) -> Any:
    async def by_rule(request: Mapping[str, Any]) -> Verdict:
        return judge(request, (), None)

    return admitting(port, str(folder / "tls.crt"), str(folder / "tls.key"), judged or by_rule)


async def ask(folder: Path, port: int, body: Any) -> tuple[int, Any]:
    trust = ssl.create_default_context(cafile=str(folder / "tls.crt"))
    url = f"https://localhost:{port}{PATH}"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, ssl=trust) as answer:
        return answer.status, await answer.json(content_type=None) if answer.status == 200 else await answer.text()


async def eventually_ask(folder: Path, port: int, body: Any) -> tuple[int, Any]:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await ask(folder, port, body)
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)


def create(**spec: Any) -> dict[str, Any]:
    request = {"uid": "7", "operation": "CREATE", "namespace": "team", "object": manifest(**spec)}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def test_it_answers_a_review(tmp_path: Path, port: int) -> None:
    write_certificate(tmp_path, "first")
    async with serve(tmp_path, port):
        status, allowed = await eventually_ask(tmp_path, port, create())
        assert (status, allowed) == (
            200,
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "7", "allowed": True}},
        )
        _, refused = await ask(tmp_path, port, create(replcas=2))
        assert refused["response"]["allowed"] is False
        assert refused["response"]["status"]["message"] == "InvalidSpec: spec.replcas: unknown field"
        _, warned = await ask(tmp_path, port, create(schedulingPolicy="ours:Shortest"))
        assert warned["response"]["allowed"] is True
        assert len(warned["response"]["warnings"]) == 1


@pytest.mark.parametrize("body", [None, [], {}, {"request": None}, {"request": {"operation": "CREATE"}}])
async def test_what_is_no_review_is_a_400(body: Any, tmp_path: Path, port: int) -> None:
    write_certificate(tmp_path, "first")
    async with serve(tmp_path, port):
        status, text = await eventually_ask(tmp_path, port, body)
    assert (status, text) == (400, "send an AdmissionReview of admission.k8s.io/v1")


async def test_it_waits_for_its_certificate(tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture) -> None:
    """cert-manager may take its time; the operator does not wait for it."""
    async with serve(tmp_path, port):
        await asyncio.sleep(0.2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)
        write_certificate(tmp_path, "late")
        assert (await eventually_ask(tmp_path, port, create()))[0] == 200
    said = [record for record in caplog.records if "waits for" in record.getMessage()]
    assert len(said) == 1, "once, and not at each look"


async def test_a_renewed_certificate_is_taken_over(tmp_path: Path, port: int) -> None:
    write_certificate(tmp_path, "first")
    async with serve(tmp_path, port):
        assert (await eventually_ask(tmp_path, port, create()))[0] == 200
        write_certificate(tmp_path, "second")
        # Only the second is trusted now: whoever asks with it has been shown it.
        assert (await eventually_ask(tmp_path, port, create()))[0] == 200


async def test_half_a_renewal_leaves_the_old_one(tmp_path: Path, port: int) -> None:
    write_certificate(tmp_path, "first")
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "tls.crt").write_bytes((tmp_path / "tls.crt").read_bytes())
    async with serve(tmp_path, port):
        assert (await eventually_ask(trusted, port, create()))[0] == 200
        other = tmp_path / "other"
        other.mkdir()
        write_certificate(other, "second")
        (tmp_path / "tls.key").unlink()
        (tmp_path / "tls.key").symlink_to(other / "tls.key")  # the certificate's is another one
        await asyncio.sleep(0.2)
        assert (await ask(trusted, port, create()))[0] == 200


async def test_a_bug_of_ours_is_a_500_and_the_next_is_answered(tmp_path: Path, port: int) -> None:
    """The API server passes over a 500, as failurePolicy says."""
    write_certificate(tmp_path, "first")
    asked = []

    async def judged(request: Mapping[str, Any]) -> Verdict:
        asked.append(request)
        if len(asked) == 1:
            raise RuntimeError("a bug")
        return Verdict()

    async with serve(tmp_path, port, judged):
        assert (await eventually_ask(tmp_path, port, create()))[0] == 500
        assert (await ask(tmp_path, port, create()))[0] == 200


async def test_without_a_port_there_is_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with admitting(None, "", "", lambda request: asyncio.sleep(0, Verdict())):
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_port_needs_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_module.main(["--all-namespaces", "--webhook-port=9443"])
    assert "--webhook-port needs --webhook-cert and --webhook-key" in capsys.readouterr().err
