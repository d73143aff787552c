"""What holds and what wakes under KEDA, on a real Prometheus: a replica that is silent, and a deployment that sleeps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiohttp.test_utils import unused_port

from pagemill import metrics
from pagemill_operator.gateway.metrics import READY_REPLICAS
from pagemill_operator.queries import KV_CACHE_USAGE, RUNNING_RATIO, WAITING, asleep_query, keda_queries, silent_query
from pagemill_operator.spec_scaling import Targets
from tests.prometheus.conftest import FIRST, SECOND
from tests.prometheus.scraping import PATIENCE, Scraping, Target, scraping
from tests.server.api.running import Running

pytestmark = pytest.mark.cluster

Servers = dict[str, Running]


async def until(prometheus: Scraping, query: str, expected: list[float]) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := [each.value for each in await prometheus.ask(query)]) != expected:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


async def test_a_silent_replica_is_no_answer(program: str, servers: Servers, tmp_path: Path) -> None:
    """Two jobs are no two replicas, and one of them that never answers makes no replica silent."""
    there, nobody = servers[FIRST].port, unused_port()
    whole = {"pods": [Target(there, FIRST), Target(servers[SECOND].port, SECOND)]}
    for number, (jobs, expected) in enumerate(
        (
            (whole, [0.0]),
            (whole | {"extra": [Target(nobody, FIRST)]}, [0.0]),
            ({"pods": [Target(there, FIRST), Target(nobody, SECOND)], "extra": [Target(there, FIRST)]}, []),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with scraping(program, folder, jobs) as prometheus:
            await until(prometheus, f"count(up) == {sum(map(len, jobs.values()))}", [sum(map(len, jobs.values()))])
            await until(prometheus, silent_query("team", "chat"), expected)
            assert await prometheus.ask(silent_query("team", "chatty")) == [], (
                "who is not scraped is not known to be silent"
            )


async def test_who_is_gone_has_no_last_word(program: str, tmp_path: Path) -> None:
    """A replica that fell silent may come back with what it had; one that was taken away has handed its load on."""
    busy = {metrics.WAITING: 4, metrics.RUNNING: 4, metrics.MAX_NUM_SEQS: 4, metrics.KV_CACHE_USAGE: 0.5}
    queries = keda_queries("team", "chat", Targets())
    with page(busy) as port:
        both = [Target(port, FIRST), Target(port, SECOND)]
        with scraping(program, tmp_path, {"pods": both}) as prometheus:
            await until(prometheus, queries[WAITING], [8])
            prometheus.discover({"pods": [Target(port, FIRST), Target(unused_port(), SECOND)]})
            await until(prometheus, "count(up == 0)", [1])
            assert await values(prometheus, queries) == {WAITING: [8], RUNNING_RATIO: [2], KV_CACHE_USAGE: [1]}
            prometheus.discover({"pods": [Target(port, FIRST)]})
            await until(prometheus, queries[WAITING], [4])
            assert await values(prometheus, queries) == {WAITING: [4], RUNNING_RATIO: [1], KV_CACHE_USAGE: [0.5]}


async def values(prometheus: Scraping, queries: dict[str, str]) -> dict[str, list[float]]:
    return {signal: [each.value for each in await prometheus.ask(query)] for signal, query in queries.items()}


def gateway(ready: dict[str, int]) -> AbstractContextManager[int]:
    """A page of a gateway's, on a port."""
    return page({f'{READY_REPLICAS}{{deployment="{name}"}}': count for name, count in ready.items()})


@contextmanager
def page(series: Mapping[str, float]) -> Iterator[int]:
    """What Prometheus reads on a port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("".join(f"{name} {value}\n" for name, value in series.items()).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


async def test_only_who_no_gateway_has_a_replica_of_sleeps(program: str, tmp_path: Path) -> None:
    one, other = {"chat": 0, "busy": 0}, {"chat": 0, "busy": 1}
    with gateway(one) as first, gateway(other) as second:
        jobs = {"gateway": [Target(first, "gateway-1"), Target(second, "gateway-2")]}
        with scraping(program, tmp_path, jobs) as prometheus:
            await until(prometheus, asleep_query("team", "chat"), [0])
            await until(prometheus, f"count({READY_REPLICAS})", [4])
            (asleep,) = await prometheus.ask(asleep_query("team", "chat"))
            assert asleep.labels == {}
            for namespace, name in (("team", "busy"), ("team", "chatty"), ("other", "chat")):
                assert await prometheus.ask(asleep_query(namespace, name)) == []
