"""The management port of a real server: who may ask, what is in force, and changes under running streams."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagemill import hot_settings
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect
from pagemill_server import serve
from tests.server.api.running import NAME, until
from tests.server.test_serve import Living, living, loads_when_told
from tests.server.tiny import write_tiny_llama

TOKEN = "of-the-test-4711"
STREAM: dict[str, Any] = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}

Running = tuple[Living, httpx.Client, httpx.Client]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


@pytest.fixture(scope="module")
def server(files: ModelFiles) -> Iterator[tuple[Living, httpx.Client, httpx.Client]]:
    """The server, a client of its serving port and one of its management port."""
    with (
        living(files, management_token=TOKEN) as (it, client),
        httpx.Client(
            base_url=it.management_url, timeout=60, verify=False, headers={"authorization": f"Bearer {TOKEN}"}
        ) as manager,
    ):
        until(lambda: client.get("/ready").status_code == 200)
        yield it, client, manager


@pytest.fixture
def running(server: Running) -> Iterator[Running]:
    """Leaves the settings as they were."""
    _, _, manager = server
    shown = manager.get("/config").json()
    yield server
    back = {name: shown["config"][name] for name in shown["hot"]}
    assert manager.patch("/config", json=back).json() == shown


def in_force(manager: httpx.Client) -> dict[str, Any]:
    config: dict[str, Any] = manager.get("/config").raise_for_status().json()["config"]
    return config


def test_what_is_in_force_and_what_of_it_is_hot(running: Running) -> None:
    _, _, manager = running
    shown = manager.get("/config").json()
    assert shown["config"]["policy"] == "fcfs"
    assert shown["config"]["max_num_seqs"] == 16
    assert (shown["config"]["model"], shown["config"]["block_size"]) == (NAME, 16)
    assert {"policy", "weights", "max_num_seqs", "max_num_queued_reqs"} < set(shown["hot"]) < set(shown["config"])
    assert "block_size" not in shown["hot"]
    assert TOKEN not in json.dumps(shown)


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"])
def test_without_the_token_nothing_is_told_and_nothing_done(running: Running, header: str | None) -> None:
    _, _, manager = running
    headers = {} if header is None else {"authorization": header}
    with httpx.Client(base_url=manager.base_url, verify=False, headers=headers) as stranger:
        for method, path in (("GET", "/config"), ("PATCH", "/config"), ("GET", "/health"), ("GET", "/nowhere")):
            response = stranger.request(method, path, json={"max_num_seqs": 1})
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
    assert in_force(manager)["max_num_seqs"] == 16


def test_the_serving_port_knows_nothing_of_it(running: Running) -> None:
    _, client, manager = running
    assert client.get("/config", headers=manager.headers).status_code == 404
    assert manager.post("/v1/completions", json={"prompt": "a"}).status_code == 404
    assert manager.post("/config", json={}).status_code == 405


def test_a_stream_lives_through_a_change_with_nothing_lost(running: Running) -> None:
    it, client, manager = running
    expected = text_of(client.post("/v1/completions", json=STREAM).text)
    device = it.unhurried()
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(client.post, "/v1/completions", json=STREAM) for _ in range(4)]
        until(lambda: it.running() == 4)
        changes: list[dict[str, Any]] = [
            {"policy": "priority", "aging_seconds": 2},
            {"max_num_seqs": 2},
            {"policy": "fair", "weights": {"key1": 2}, "max_num_batched_tokens": 8},
            {"policy": "deadline", "ttft_ms": 100, "max_num_seqs": 16, "max_num_batched_tokens": 64},
        ]
        for change in changes:
            shown = manager.patch("/config", json=change)
            assert shown.status_code == 200
            assert shown.json()["config"] == in_force(manager)
            assert change.items() <= shown.json()["config"].items()
        assert it.running() > 0, "they have lived through all of it"
        device.hurry.set()
        assert client.post("/v1/completions", json={"prompt": "b", "max_tokens": 2}).status_code == 200
        for stream in streams:
            assert text_of(stream.result().text) == expected


def text_of(events: str) -> str:
    lines = [line.removeprefix("data: ") for line in events.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"max_num_seqs": 3, "block_size": 16}, "block_size", "is not a setting that can change"),
        ({"max_num_seqs": 0}, "max_num_seqs", "must be a whole number from 1"),
        ({"max_num_seqs": 3, "policy": "lifo"}, "policy", 'There is no scheduling policy "lifo"'),
        ({"policy": "nowhere_of_test:P"}, "policy", "there is no module nowhere_of_test"),
        ({"weights": {"a": -1}}, "weights", "must be a number above 0"),
        ({"aging_seconds": None}, "aging_seconds", "must be a number above 0"),
        ({"policy": "fair", "max_num_seqs": 17}, "max_num_seqs", "memory was divided for at most 16"),
        ({"max_num_batched_tokens": 1 << 20}, "max_num_batched_tokens", "started with --max-num-batched-tokens"),
    ],
)
def test_all_or_nothing(running: Running, change: dict[str, Any], param: str, message: str) -> None:
    _, _, manager = running
    before = in_force(manager)
    response = manager.patch("/config", json=change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "invalid_setting")
    assert message in error["message"]
    assert in_force(manager) == before


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"max_num_seqs": NaN}'])
def test_a_body_that_is_no_object_is_a_400(running: Running, body: bytes) -> None:
    _, _, manager = running
    assert manager.patch("/config", content=body).status_code == 400


def test_an_empty_change_changes_nothing(running: Running) -> None:
    _, _, manager = running
    before = in_force(manager)
    assert manager.patch("/config", json={}).json()["config"] == before


def test_changes_at_once_are_all_applied(running: Running) -> None:
    _, _, manager = running
    with ThreadPoolExecutor(8) as pool:
        names = ["max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs", "max_num_queued_tokens"]
        list(pool.map(lambda name: manager.patch("/config", json={name: 7}), names))
    assert {name: in_force(manager)[name] for name in names} == dict.fromkeys(names, 7)


def test_ready_says_by_a_digest_which_settings_are_in_force(running: Running) -> None:
    """Both sides reckon it from the same function: the operator sees at a glance who has what it wants."""
    _, client, manager = running
    before = client.get("/ready").json()["settings"]
    shown = manager.get("/config").json()
    assert shown["settings"] == {name: shown["config"][name] for name in hot_settings.NAMES}
    assert before == hot_settings.digest(shown["settings"])
    wanted = shown["settings"] | {"policy": "fair", "weights": {"team": 2}, "max_num_queued_reqs": 9}
    assert manager.patch("/config", json=wanted).json()["settings"] == wanted
    assert client.get("/ready").json()["settings"] == hot_settings.digest(wanted) != before


def test_the_token_is_in_no_log(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    _, _, manager = running
    with caplog.at_level(logging.DEBUG):
        manager.patch("/config", json={"max_num_seqs": 5})
        manager.patch("/config", json={"max_num_seqs": "x"})
        manager.get("/config", headers={"authorization": f"Bearer {TOKEN}x"})
    assert "PATCH" in caplog.text
    assert TOKEN not in caplog.text


def test_while_the_model_loads_there_is_nothing_to_change(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    go = loads_when_told(monkeypatch)
    with (
        living(files, management_token=TOKEN) as (it, client),
        httpx.Client(base_url=it.management_url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False) as manager,
    ):
        until(lambda: client.get("/health").status_code == 200)
        assert in_force(manager)["policy"] == "fcfs"
        assert client.get("/ready").json()["settings"] is None
        response = manager.patch("/config", json={"policy": "fair"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")
        go.set()
        until(lambda: client.get("/ready").status_code == 200)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(PagemillError, match="--management-port") as error,
    ):
        serve._listen("127.0.0.1", taken.getsockname()[1], "--management-port")
    assert error.value.failure.reason is FailureReason.ADDRESS_IN_USE
