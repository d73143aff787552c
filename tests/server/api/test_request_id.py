"""X-Request-Id: a client's own comes back on whatever it gets, an unfit one is replaced, and the engine never hears of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pagemill_server.api.request_id import MAX_CHARACTERS, request_id_of
from tests.server.api.running import NAME, Running, serving

ID = "01J-abc.DEF_~+/=:@|,9"
BODY: dict[str, Any] = {"prompt": "a", "max_tokens": 2}


@pytest.mark.parametrize("fit", [b"a", ID.encode(), b"x" * MAX_CHARACTERS])
def test_a_fit_one_is_kept(fit: bytes) -> None:
    assert request_id_of([(b"host", b"x"), (b"x-request-id", fit)]) == fit.decode()


@pytest.mark.parametrize(
    "unfit", [b"", b" ", b"a b", b"a\tb", b'"', b"\xff", b"{}", b"x" * (MAX_CHARACTERS + 1), "ü".encode()]
)
def test_an_unfit_one_is_replaced(unfit: bytes) -> None:
    made = request_id_of([(b"x-request-id", unfit)])
    assert len(made) == 32
    assert int(made, 16) >= 0


def test_without_one_each_request_has_its_own() -> None:
    assert request_id_of([]) != request_id_of([])


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", BODY, 200),
        ("POST", "/v1/completions", BODY | {"stream": True}, 200),
        ("POST", "/v1/completions", BODY | {"n": 0}, 400),
        ("POST", "/v1/completions", BODY | {"model": "nobody"}, 404),
        ("GET", "/nowhere", None, 404),
        ("PUT", "/v1/models", None, 405),
        ("GET", "/health", None, 200),
        ("GET", "/metrics", None, 200),
        ("GET", "/v1/models", None, 200),
        ("HEAD", "/v1/models", None, 200),
        ("OPTIONS", "/v1/completions", None, 405),
    ],
)
def test_it_is_on_every_response(server: Running, method: str, path: str, body: Any, status: int) -> None:
    with server.client() as client:
        response = client.request(method, path, json=body, headers={"x-request-id": ID})
        assert response.status_code == status
        assert response.headers.get_list("x-request-id") == [ID]
        assert len(client.request(method, path, json=body).headers["x-request-id"]) == 32


@pytest.fixture(scope="module")
def closed(tiny: Path) -> Iterator[Running]:
    with serving(tiny, api_keys=("secret",)) as running:
        yield running


def test_on_a_refusal_at_the_door(closed: Running) -> None:
    with closed.client() as client:
        response = client.get("/v1/models", headers={"x-request-id": ID})
    assert (response.status_code, response.headers["x-request-id"]) == (401, ID)


def test_on_what_is_no_http(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"hello\r\n\r\n")
        received = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b"\r\nx-request-id: " in received


def test_on_a_bug_of_ours(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny) as server, server.client() as client:
        monkeypatch.setattr(server.service, "name_of", None)
        response = client.post("/v1/completions", json=BODY, headers={"x-request-id": ID})
    assert (response.status_code, response.headers["x-request-id"]) == (500, ID)


def test_openais_client_shows_it(server: Running) -> None:
    answer = server.openai.completions.create(model=NAME, **BODY, extra_headers={"x-request-id": ID})
    assert answer._request_id == ID
    with pytest.raises(openai.BadRequestError) as error:
        server.openai.completions.create(model=NAME, prompt="a", n=0, extra_headers={"x-request-id": ID})
    assert error.value.request_id == ID


def test_two_requests_at_once_may_have_the_same(idle_server: Running) -> None:
    """To an engine that took it for its own, the second would be the first, and hanging up the first would end the second."""
    body = {"prompt": "same", "max_tokens": 1500, "ignore_eos": True, "temperature": 0, "stream": True}
    all_run = threading.Barrier(3)

    def ask(leave: bool) -> str:
        with (
            idle_server.client(headers={"x-request-id": "same"}) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            lines = response.iter_lines()
            received = [next(lines)]
            all_run.wait(30)
            received += [] if leave else lines
        return "".join(json.loads(line[6:])["choices"][0]["text"] for line in received if line.startswith("data: {"))

    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(ask, [False, True, False]))
    assert texts[0] == texts[2]
    assert len(texts[0]) > len(texts[1])


def test_it_stays_out_of_the_answers_own_id(server: Running) -> None:
    with server.client() as client:
        response: httpx.Response = client.post("/v1/completions", json=BODY, headers={"x-request-id": ID})
    assert ID not in response.json()["id"]
