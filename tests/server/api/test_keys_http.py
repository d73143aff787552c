"""Keys at a real server: who gets in, what is shared, what is limited, what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemill_server.api.app import make_app
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.api.prepare import Origin
from tests.server.api.running import NAME, Running, serving, until
from tests.server.tiny_bert import write_tiny_encoder

PROMPT = list(range(1, 101))  # six whole blocks of 16 tokens
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True}
ENDLESS = BODY | {"max_tokens": 3000, "stream": True}


@contextmanager
def keyed(tiny: Path, tmp_path: Path, *entries: str) -> Iterator[Running]:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{', '.join(f'{{{entry}}}' for entry in entries)}]")
    with serving(tiny, api_keys=KeyRing((), str(file))) as server:
        yield server


def as_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def complete(server: Running, key: str, **fields: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/completions", json=BODY | fields, headers=as_key(key))


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def error_of(answer: httpx.Response) -> Any:
    return answer.json()["error"]


def counted(server: Running) -> dict[tuple[str, ...], float]:
    """Every series by key that is not 0."""
    with server.client() as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if "key" in sample.labels and sample.value]
    words = ("key", "outcome", "reason")
    return {(s.name, *(s.labels[word] for word in words if word in s.labels)): s.value for s in samples}


def test_every_route_and_method_asks_for_it(tiny: Path, tmp_path: Path) -> None:
    with keyed(tiny, tmp_path, "name: a, key: one") as server, server.client() as client:
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE"):
            for path in (
                "/v1/models",
                "/v1/completions",
                "/nowhere",
                "/",
                "/health/",
                "/metrics/../v1/models",
                "//health",
            ):
                refused = client.request(method, path, headers=as_key("two"))
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
        assert client.get("/v1/models", headers={"authorization": "bEARER  one"}).status_code == 200
        assert client.get("/nowhere", headers=as_key("one")).status_code == 404
        for headers in ({"x-api-key": "one"}, {"authorization": "Basic one"}, {"authorization": "one"}):
            assert client.get("/v1/models", headers=headers).status_code == 401


def test_of_our_routes_only_the_probes_are_open(tiny: Path, tmp_path: Path) -> None:
    """Whatever route is added: it needs a key, unless it is named here."""
    with keyed(tiny, tmp_path, "name: a, key: one") as server, server.client() as client:
        routes = make_app(server.service).routes
        found = {route.path: client.get(route.path.replace("{name:path}", NAME)).status_code for route in routes}
        posted = {route.path: client.post(route.path, json={}).status_code for route in routes}
    opened = {"/health", "/ready", "/metrics", "/version"}
    assert {path for path, status in found.items() if status != 401} == opened
    assert {path for path, status in posted.items() if status != 401} == opened
    assert found["/v1/models"] == found["/v1/responses/{id}"] == 401


def test_a_file_without_keys_lets_nobody_in(tiny: Path, tmp_path: Path) -> None:
    with keyed(tiny, tmp_path) as server, server.client() as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer"}).status_code == 401
        assert client.get("/health").status_code == 200


class TestCache:
    def test_keys_never_share_even_under_one_salt(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one", "name: b, key: two") as server:
            for salt in ({}, {"cache_salt": "same"}):
                assert cached(complete(server, "one", **salt)) == 0
                assert cached(complete(server, "two", **salt)) == 0
                assert cached(complete(server, "one", **salt)) == cached(complete(server, "two", **salt)) == 96

    def test_no_salt_spells_another_keys(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one", "name: b, key: two") as server:
            assert cached(complete(server, "one")) == 0
            for key in server.service.keys.keys:
                assert cached(complete(server, "two", cache_salt=server.service.keys.salt(key))) == 0

    def test_a_group_shares_and_its_salts_still_divide(self, tiny: Path, tmp_path: Path) -> None:
        entries = "name: a, key: one, cacheGroup: all", "name: b, key: two, cacheGroup: all", "name: c, key: three"
        with keyed(tiny, tmp_path, *entries) as server:
            assert cached(complete(server, "one")) == 0
            assert cached(complete(server, "two")) == 96
            assert cached(complete(server, "three")) == 0
            assert cached(complete(server, "two", cache_salt="s")) == 0


class TestLimits:
    def test_the_headers_of_every_answer(self, tiny: Path, tmp_path: Path) -> None:
        entries = "name: a, key: one, requestsPerMinute: 60, tokensPerMinute: 6000", "name: b, key: two"
        with keyed(tiny, tmp_path, *entries) as server, server.client() as client:
            answer = complete(server, "one")
            shown = {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit")}
            assert (shown["x-ratelimit-limit-requests"], shown["x-ratelimit-limit-tokens"]) == ("60", "6000")
            assert int(shown["x-ratelimit-remaining-requests"]) == 59
            assert 5898 <= int(shown["x-ratelimit-remaining-tokens"]) < 6000
            assert len(shown) == 6
            stream = {"stream": True} | BODY
            with client.stream("POST", "/v1/completions", json=stream, headers=as_key("one")) as streamed:
                assert "x-ratelimit-reset-tokens" in streamed.headers
            wrong = complete(server, "one", temperature=-1)
            assert wrong.status_code == 400
            assert "x-ratelimit-remaining-requests" in wrong.headers
            assert not [name for name in complete(server, "two").headers if name.startswith("x-ratelimit")]

    def test_requests_are_refused_before_their_body_is_read(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one, requestsPerMinute: 1") as server, server.client() as client:
            assert complete(server, "one").status_code == 200
            refused = client.post("/v1/completions", content=b"not JSON", headers=as_key("one"))
            assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
            assert error_of(refused)["type"] == "rate_limit_error"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert client.get("/v1/models", headers=as_key("one")).status_code == 200
            assert counted(server)["pagemill:rate_limited_total", "a", "requests"] == 1

    def test_tokens(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one, tokensPerMinute: 150") as server:
            assert complete(server, "one").status_code == 200
            refused = complete(server, "one")
            assert refused.status_code == 429
            assert "on tokens per min: limit 150" in error_of(refused)["message"]
            assert server.stats.prompt_tokens == len(PROMPT)
            assert complete(server, "one", prompt=[1]).status_code == 200

    def test_requests_at_once_until_the_client_hangs_up(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one, maxConcurrency: 1") as server, server.client() as client:
            with client.stream("POST", "/v1/completions", json=ENDLESS, headers=as_key("one")) as response:
                lines = response.iter_lines()  # held: a generator that is dropped hangs up
                next(lines)
                refused = complete(server, "one")
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert "1 requests at once" in error_of(refused)["message"]
            server.wait_idle()
            until(lambda: complete(server, "one").status_code == 200)
            assert counted(server)["pagemill:key_requests_total", "a", "aborted"] == 1

    def test_a_body_that_never_comes_whole_gives_its_place_back(self, tiny: Path, tmp_path: Path) -> None:
        def half() -> Iterator[bytes]:
            yield b"{"
            raise RuntimeError

        with keyed(tiny, tmp_path, "name: a, key: one, maxConcurrency: 1") as server:
            with server.client() as client, pytest.raises(RuntimeError):
                client.post("/v1/completions", content=half(), headers=as_key("one"))
            until(lambda: complete(server, "one").status_code == 200)


class TestPriority:
    def test_none_before_the_keys_own(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one, maxPriority: 0") as server:
            assert complete(server, "one", priority=0).status_code == complete(server, "one").status_code == 200
            refused = complete(server, "one", priority=-1)
            assert (refused.status_code, error_of(refused)["param"]) == (400, "priority")
            assert "priority is -1, and this key may ask for 0 at the lowest" in error_of(refused)["message"]

    def test_a_request_that_names_none_gets_what_its_key_may(self, tiny: Path, tmp_path: Path) -> None:
        with keyed(tiny, tmp_path, "name: a, key: one, maxPriority: 5") as server:
            assert complete(server, "one").status_code == 200
            assert complete(server, "one", priority=4).status_code == 400
        assert Origin(0, "a", max_priority=5).priority(None) == 5
        assert Origin(0, "a", max_priority=-5).priority(None) == Origin(0, "a").priority(None) == 0


def test_usage_by_name(tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with keyed(tiny, tmp_path, "name: a, key: one-secret", "name: b, key: two") as server, server.client() as client:
        assert complete(server, "one-secret", n=3).status_code == 200
        assert complete(server, "one-secret", prompt=[[1], [2]]).status_code == 200
        assert complete(server, "one-secret", max_tokens=-1).status_code == 400
        assert counted(server) == {
            ("pagemill:key_prompt_tokens_total", "a"): len(PROMPT) + 2,
            ("pagemill:key_completion_tokens_total", "a"): 3 * 2 + 2 * 2,
            ("pagemill:key_requests_total", "a", "success"): 2,
            ("pagemill:key_requests_total", "a", "invalid"): 1,
        }
        text = client.get("/metrics").text
        assert 'pagemill:key_requests_total{engine="0",key="b",model_name="tiny/llama",outcome="aborted"} 0.0' in text
        assert "secret" not in text
    assert "secret" not in caplog.text


def test_embeddings_count_too(tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "encoder")
    with (
        keyed(encoder, tmp_path, "name: a, key: one, tokensPerMinute: 100, weight: 2") as server,
        server.client() as client,
    ):
        body = {"input": ["a cat", "two words"]}
        answer = client.post("/v1/embeddings", json=body, headers=as_key("one"))
        assert answer.status_code == 200, answer.text
        used = answer.json()["usage"]["prompt_tokens"]
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 100 - used
        assert client.post("/v1/embeddings", json=body).status_code == 401
        assert client.post("/v1/embeddings", json={"input": ["a " * 20] * 5}, headers=as_key("one")).status_code == 429
        assert counted(server) == {
            ("pagemill:key_prompt_tokens_total", "a"): used,
            ("pagemill:key_requests_total", "a", "success"): 1,
            ("pagemill:key_requests_total", "a", "refused"): 1,
            ("pagemill:rate_limited_total", "a", "tokens"): 1,
        }


def test_streamed_usage_is_unstreamed(tiny: Path, tmp_path: Path) -> None:
    with keyed(tiny, tmp_path, "name: a, key: one", "name: b, key: two") as server:
        whole = complete(server, "one", seed=1).json()
        events = complete(server, "two", seed=1, stream=True, stream_options={"include_usage": True}).text
        usage = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")][-1]["usage"]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 2
        found = counted(server)
        for name in ("pagemill:key_prompt_tokens_total", "pagemill:key_completion_tokens_total"):
            assert found[name, "a"] == found[name, "b"]


def test_a_failure_in_mid_stream_is_ours(tiny: Path, tmp_path: Path) -> None:
    with keyed(tiny, tmp_path, "name: a, key: one") as server, server.client() as client:
        with client.stream("POST", "/v1/completions", json=ENDLESS, headers=as_key("one")) as response:
            lines = response.iter_lines()
            next(lines)
            server.model.engine._runner.run = None  # type: ignore[method-assign,assignment]
            assert [line for line in lines if line][-1] == "data: [DONE]"
        found = counted(server)
        assert found["pagemill:key_requests_total", "a", "failed"] == 1
        assert found["pagemill:key_completion_tokens_total", "a"] > 0


def test_a_name_is_not_taken_by_a_header(tiny: Path, tmp_path: Path) -> None:
    """With keys on, x-client-id says nothing: no work is charged to another key's name."""
    with keyed(tiny, tmp_path, "name: a, key: one", "name: b, key: two") as server, server.client() as client:
        headers = as_key("one") | {"x-client-id": "b"}
        with client.stream("POST", "/v1/completions", json=ENDLESS | {"user": "u/v"}, headers=headers) as response:
            lines = response.iter_lines()
            next(lines)
            (members,) = server.model.engine._roster.requests.values()
            assert members[0].request.client == "a/u/v"
