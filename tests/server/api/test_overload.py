"""When too much waits: 429 with Retry-After before any work, whole requests only, and everything taken is answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemill import metrics as names
from pagemill_server.config import SchedulerConfig
from tests.server.api.running import NAME, Running, serving, settings_for, until
from tests.server.api.test_status import Hanging

COMPLETIONS = "/v1/completions"


@contextmanager
def held(tiny: Path, **bounds: int) -> Iterator[tuple[Running, Hanging, ThreadPoolExecutor]]:
    """A server with one place, whose device computes when it is let go."""
    settings = replace(settings_for(tiny), scheduler=SchedulerConfig(max_num_seqs=1, **bounds))  # type: ignore[arg-type]
    with serving(tiny, settings=settings) as server, ThreadPoolExecutor(16) as pool:
        hanging = server.model.engine._runner = Hanging(server.model.engine._runner)
        try:
            yield server, hanging, pool
        finally:
            hanging.go.set()


def send(server: Running, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 2} | body)


def fill(server: Running, pool: ThreadPoolExecutor, number: int) -> list[Future[httpx.Response]]:
    """So many requests on the engine, the first of them in a step that hangs."""
    answers = []
    for count in range(1, number + 1):
        answers.append(pool.submit(send, server))
        until(lambda count=count: len(server.service.loaded.engine._mailboxes) == count)  # type: ignore[union-attr,misc]
    return answers


def rejections(server: Running) -> dict[str, float]:
    families = text_string_to_metric_families(server.service.metrics.render().decode())
    (family,) = [family for family in families if f"{family.name}_total" == names.ADMISSION_REJECTIONS]
    return {sample.labels[names.REJECTION_LABEL]: sample.value for sample in family.samples}


def check_refusal(response: httpx.Response, bound: str) -> None:
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 120
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "queue_full", None)
    assert bound in error["message"]


def test_beyond_the_bound_it_is_429_and_what_was_taken_is_answered(tiny: Path) -> None:
    with held(tiny, max_num_queued_reqs=2) as (server, hanging, pool):
        taken = fill(server, pool, 3)
        check_refusal(send(server), "max_num_queued_reqs=2")
        check_refusal(send(server, stream=True), "max_num_queued_reqs=2")
        check_refusal(send(server, n=2, temperature=1), "max_num_queued_reqs=2")
        with pytest.raises(openai.RateLimitError):
            server.openai.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "a"}])
        assert rejections(server) == {"max_num_queued_reqs": 4, "max_num_queued_tokens": 0}
        hanging.go.set()
        assert [answer.result().status_code for answer in taken] == [200] * 3
        assert send(server).status_code == 200
        server.wait_idle()


def test_a_request_waits_with_all_of_its_sequences_or_not_at_all(tiny: Path) -> None:
    with held(tiny, max_num_queued_reqs=3) as (server, hanging, pool):
        taken = fill(server, pool, 2)
        check_refusal(send(server, n=3, temperature=1), "max_num_queued_reqs=3")
        check_refusal(send(server, prompt=["a", "b", "c"]), "max_num_queued_reqs=3")
        assert server.stats.num_added <= 2
        fitting = pool.submit(send, server, n=2, temperature=1)
        hanging.go.set()
        assert len(fitting.result().json()["choices"]) == 2
        assert [answer.result().status_code for answer in taken] == [200] * 2


def test_prompt_tokens_that_wait_are_bounded(tiny: Path) -> None:
    with held(tiny, max_num_queued_tokens=50) as (server, hanging, pool):
        taken = fill(server, pool, 2)
        check_refusal(send(server, prompt="x" * 60), "max_num_queued_tokens=50")
        assert rejections(server) == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 1}
        taken.append(pool.submit(send, server, prompt="x" * 40))
        hanging.go.set()
        assert [answer.result().status_code for answer in taken] == [200] * 3
        assert send(server, prompt="x" * 60).status_code == 200, "nobody waits: one of any length is taken"


def test_it_is_refused_before_its_body_is_read(tiny: Path) -> None:
    with held(tiny, max_num_queued_reqs=1) as (server, _, pool):
        fill(server, pool, 2)
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.settimeout(30)
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{")
            head, _, rest = raw.recv(65536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: " in head.lower()
        assert json.loads(rest or b"{}").get("error", {"code": "queue_full"})["code"] == "queue_full"


def test_without_bounds_nobody_is_refused(tiny: Path) -> None:
    with held(tiny) as (server, hanging, pool):
        taken = fill(server, pool, 12)
        hanging.go.set()
        assert {answer.result().status_code for answer in taken} == {200}
        assert rejections(server) == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}


def test_the_estimated_wait_is_on_metrics(tiny: Path) -> None:
    def estimate(server: Running) -> float:
        families = text_string_to_metric_families(server.service.metrics.render().decode())
        return next(f.samples[0].value for f in families if f.name == names.ESTIMATED_QUEUE_SECONDS)

    with serving(tiny) as server:
        assert estimate(server) == 0
        device = server.unhurried()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(send, server, max_tokens=200, ignore_eos=True)
            until(lambda: estimate(server) > 0)
            device.hurry.set()
            assert answer.result().status_code == 200
        server.wait_idle()
        assert estimate(server) == 0
