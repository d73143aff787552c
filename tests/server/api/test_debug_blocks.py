"""GET /debug/blocks and the page's files on the management port of a real server: what they tell, to whom, and when."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagemill.model_files import ModelFiles, inspect
from pagemill_server import serve
from pagemill_server.api import blocks
from pagemill_server.api.page.files import FOLDER, page_routes
from pagemill_server.loading import load
from tests.server.api.running import NAME, until
from tests.server.test_serve import Living, living
from tests.server.tiny import write_tiny_llama

TOKEN = "of-the-test-4711"
SECRET = "a word that must not be seen"
ENDLESS: dict[str, Any] = {"prompt": SECRET, "max_tokens": 60_000, "ignore_eos": True, "stream": True}

Pair = tuple[Living, httpx.Client, httpx.Client]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


@contextmanager
def manager_of(it: Living) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=it.management_url, timeout=60, verify=False, headers=headers) as manager:
        yield manager


@pytest.fixture(scope="module")
def server(files: ModelFiles) -> Iterator[Pair]:
    with living(files, management_token=TOKEN) as (it, client), manager_of(it) as manager:
        until(lambda: client.get("/ready").status_code == 200)
        yield it, client, manager


@pytest.fixture(scope="module")
def stranger(server: Pair) -> Iterator[httpx.Client]:
    """A client of the management port that has no token."""
    with httpx.Client(base_url=server[0].management_url, timeout=60, verify=False) as client:
        yield client


def shown(manager: httpx.Client) -> dict[str, Any]:
    body: dict[str, Any] = manager.get("/debug/blocks").raise_for_status().json()
    return body


def until_shown(manager: httpx.Client, condition: Any) -> dict[str, Any]:
    """What is shown once the condition holds of it: one snapshot is for all who ask within a moment."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.clear()
        found.update(shown(manager))
        return bool(condition(found))

    until(look, found)
    return found


@contextmanager
def streams(client: httpx.Client, count: int, **fields: Any) -> Iterator[None]:
    """So many answers under way; leaving hangs up."""
    reading = []  # a reader that is dropped hangs up too
    with ExitStack() as stack:
        for number in range(count):
            headers = {"x-client-id": f"client{number}"}
            response = stack.enter_context(
                client.stream("POST", "/v1/completions", json=ENDLESS | fields, headers=headers)
            )
            assert response.status_code == 200
            reading.append(response.iter_lines())
            next(reading[-1])
        yield


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], ""),
        ([7], "7"),
        ([3, 4, 5], "3-5"),
        ([8, 7, 6], "8-6"),
        ([3, 4, 5, 9, 8, 7, 1], "3-5,9-7,1"),
        ([1, 3, 5], "1,3,5"),
        ([5, 6, 5], "5-6,5"),
        ([0, 1, 0, 1], "0-1,0-1"),
    ],
)
def test_blocks_are_told_in_runs(numbers: list[int], expected: str) -> None:
    assert blocks.runs(numbers) == expected


def test_who_runs_and_whose_each_block_is(server: Pair) -> None:
    _, client, manager = server
    with streams(client, 2):
        found = until_shown(manager, lambda body: len(body["running"]) == 2)
        first, second = found["running"]
        assert (first["client"], second["client"]) == ("client0", "client1")
        assert (first["state"], first["prompt_tokens"], first["max_tokens"]) == ("running", len(SECRET), 60_000)
        assert first["request"].startswith("cmpl-")
        assert 0 < first["output_tokens"] <= first["computed_tokens"]
        assert first["blocks"]
        counts = found["blocks"]
        assert counts["held"] > 0
        assert counts["free"] + counts["held"] + counts["cached"] + counts["parked"] == counts["total"]
        assert found["server"]["in_flight"] == 2
        assert found["engine"]["running"] == 2
    after = until_shown(manager, lambda body: not body["running"])
    assert after["blocks"]["held"] == 0
    assert after["blocks"]["cached_blocks"], "full blocks stay for who comes next"


def test_times_are_of_requests_that_came_lately(server: Pair) -> None:
    _, client, manager = server
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": 8, "ignore_eos": True})
    latency = shown(manager)["latency"]
    assert latency["time_to_first_token"]["count"] >= 1
    assert 0 < latency["inter_token"]["p50"] <= latency["inter_token"]["p95"]


def test_no_word_of_a_prompt_or_an_answer_is_told(server: Pair) -> None:
    _, client, manager = server
    with streams(client, 1, user="the-user"):
        text = json.dumps(until_shown(manager, lambda body: body["running"]))
    assert SECRET not in text
    assert TOKEN not in text


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", TOKEN])
def test_only_who_has_the_token_is_told(stranger: httpx.Client, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for path in ("/debug/blocks", "/debug/blocks/", "/page/", "/page/../config", "/page/nothing.js"):
        assert stranger.get(path, headers=headers).status_code == 401


def test_the_serving_port_has_neither(server: Pair) -> None:
    _, client, manager = server
    for path in ("/debug/blocks", "/", "/page/main.js"):
        assert client.get(path, headers=manager.headers).status_code == 404


def test_the_page_loads_without_the_token_and_from_here_only(stranger: httpx.Client) -> None:
    for route in page_routes():
        response = stranger.get(route.path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "*" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "http://" not in response.text.replace("http://www.w3.org/", "")
        assert "https://" not in response.text
    assert stranger.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert stranger.get(FOLDER + "main.js").headers["content-type"].startswith("text/javascript")
    assert stranger.post("/").status_code == 405


def test_everything_that_the_page_names_is_there() -> None:
    there = {route.path for route in page_routes()}
    static = Path(blocks.__file__).with_name("page") / "static"
    html = (static / "index.html").read_text()
    assert {name for name in html.split('"') if name.startswith("/page/")} <= there
    for script in static.glob("*.js"):
        named = {part.split('"')[0] for part in script.read_text().split('from "./')[1:]}
        assert {FOLDER + name for name in named} <= there


def test_while_the_model_loads_it_says_so(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slow(*arguments: Any) -> Any:
        assert go.wait(30)
        return load(*arguments)

    monkeypatch.setattr(serve, "load", slow)
    with living(files, management_token=TOKEN) as (it, client), manager_of(it) as manager:
        until(lambda: client.get("/health").status_code == 200)
        body = shown(manager)
        assert (body["engine"], body["blocks"], body["running"], body["waiting"]) == (None, None, [], [])
        assert (body["server"]["model"], body["server"]["phase"]) == (NAME, "Starting")
        go.set()
        until(lambda: shown(manager)["engine"] is not None)
        assert shown(manager)["server"]["phase"] == "Serving"


def test_a_drain_is_seen_to_its_end(files: ModelFiles) -> None:
    with (
        living(files, management_token=TOKEN, shutdown_timeout=60) as (it, client),
        manager_of(it) as manager,
    ):
        until(lambda: client.get("/ready").status_code == 200)
        with streams(client, 1):
            it.signal()
            found = until_shown(manager, lambda body: body["server"]["refusing"])
            assert (found["server"]["phase"], found["server"]["in_flight"]) == ("Draining", 1)


def test_a_poll_a_second_leaves_the_log_alone(
    server: Pair, stranger: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, manager = server

    def told() -> list[str]:
        return [record.name for record in caplog.records if record.name.startswith("pagemill")]

    with caplog.at_level("INFO", logger="pagemill"):
        shown(manager)
        stranger.get("/")
        manager.get("/nowhere")
        until(lambda: bool(told()))  # a line is written when its answer has left
    assert told() == ["pagemill.access"]


def test_the_start_says_where_the_page_is_but_not_the_token(
    files: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), living(files, management_token=TOKEN) as (it, client):
        until(lambda: client.get("/health").status_code == 200)
        until(lambda: it.management_url + "/" in caplog.text)
    assert TOKEN not in caplog.text
