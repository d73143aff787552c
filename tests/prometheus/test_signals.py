"""Debian's Prometheus scrapes real servers: every query gives what it promises, each trouble is seen, and the numbers are those of
the operator's own scrape."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import pytest

from pagemill_operator.errors import PrometheusError
from pagemill_operator.queries import activation_query, keda_queries, signal_queries
from pagemill_operator.samples import FRESH, read
from pagemill_operator.scraped import Scraped
from pagemill_operator.signals import Samples
from pagemill_operator.spec_scaling import Targets
from tests.prometheus.conftest import FIRST, NEIGHBOUR, SECOND, settings
from tests.prometheus.scraping import Scraping, Target, scraping
from tests.server.api.running import Running, serving

pytestmark = pytest.mark.cluster

EVERYTHING = Targets.model_validate({"ttftSeconds": 1, "preemptionsPerSecond": 1})
Servers = dict[str, Running]


@pytest.fixture
def both(program: str, servers: Servers, tmp_path: Path) -> Iterator[Scraping]:
    """Prometheus, which scrapes all three servers."""
    targets = [Target(server.port, pod) for pod, server in servers.items()]
    with scraping(program, tmp_path, {"pods": targets}) as running:
        yield running


async def own(servers: Servers, before: Scraped | None, *pods: str) -> tuple[Samples, Scraped]:
    """The operator's own scrape."""
    pages = {pod: await page_of(servers[pod]) for pod in pods}
    return read(datetime.now(UTC), pods, 0, pages, before, 0)


@contextmanager
def load(server: Running) -> Iterator[None]:
    """Three sequences of which one runs; the answer comes until the block is left."""
    body = {"prompt": "abc", "max_tokens": 32000, "ignore_eos": True, "stream": True, "n": 3}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        yield
    server.wait_idle()


async def test_each_query_gives_the_series_that_it_promises(both: Scraping) -> None:
    await both.until_whole("chat", FIRST, SECOND)
    await both.until_whole("chat-b", NEIGHBOUR)
    for signal, query in signal_queries("team", "chat").items():
        pods = [found.labels.get("pod") for found in await both.ask(query)]
        assert sorted(pods, key=str) == ([None] if signal == "ttftSeconds" else sorted((FIRST, SECOND))), signal
    for signal, query in keda_queries("team", "chat", EVERYTHING).items():
        (found,) = await both.ask(query)
        assert (found.labels, found.value) == ({}, 0.0), signal


async def test_where_nothing_is_scraped_no_query_gives_a_zero(both: Scraping) -> None:
    for namespace, name in (("team", "chatty"), ("other", "chat")):
        asked = {**signal_queries(namespace, name), **keda_queries(namespace, name, EVERYTHING)}
        for signal, query in {**asked, "activation": activation_query(namespace, name)}.items():
            assert await both.ask(query) == [], signal


async def test_prometheus_and_the_operators_own_scrape_agree(both: Scraping, servers: Servers) -> None:
    await both.until_whole("chat", FIRST, SECOND)  # who got a first token before is no part of either's increase
    _, scraped = await own(servers, None, FIRST, SECOND)
    with load(servers[FIRST]):
        before, scraped = await own(servers, scraped, FIRST, SECOND)
        await both.until_scraped("chat", time.time())
        told = await both.until("chat", [FIRST, SECOND], lambda samples: not (samples.missing or samples.doubtful))
        after, scraped = await own(servers, scraped, FIRST, SECOND)
        for now in (before, told, after):
            assert (now.missing, now.doubtful) == ((), ())
            assert [found.pod for found in now.replicas] == sorted((FIRST, SECOND))
        busy = {now: next(found for found in now.replicas if found.pod == FIRST) for now in (before, told, after)}
        for found in busy.values():
            assert (found.running, found.waiting, found.max_running) == (1, 2, 1)
            assert found.preemptions_per_second == 0
        assert 0 < busy[before].kv_cache_usage <= busy[told].kv_cache_usage <= busy[after].kv_cache_usage
        assert told.ttft_p95 == pytest.approx(after.ttft_p95)
        expected = {"waitingRequests": 2, "runningRatio": 1, "preemptionsPerSecond": 0, "ttftSeconds": told.ttft_p95}
        for signal, value in expected.items():
            (one,) = await both.ask(keda_queries("team", "chat", EVERYTHING)[signal])
            assert one.value == pytest.approx(value), signal


async def test_a_replica_that_is_down_is_missing(program: str, servers: Servers, model: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        second = stack.enter_context(serving(model, settings=settings()))
        targets = [Target(servers[FIRST].port, FIRST), Target(second.port, SECOND)]
        with scraping(program, tmp_path, {"pods": targets}) as prometheus:
            await prometheus.until_whole("chat", FIRST, SECOND)
            stack.close()
            samples = await prometheus.until("chat", [FIRST, SECOND], lambda samples: bool(samples.missing))
            assert [found.pod for found in samples.replicas] == [FIRST]
            (words,) = samples.missing
            assert words.startswith(f"Prometheus has nothing of {SECOND}: its last scrape failed")
            (ratio,) = await prometheus.ask(keda_queries("team", "chat", EVERYTHING)["runningRatio"])
            assert ratio.value == 0


async def test_a_replica_that_two_jobs_scrape_is_seen_and_counts_once_for_keda(
    program: str, servers: Servers, tmp_path: Path
) -> None:
    targets = [Target(servers[pod].port, pod) for pod in (FIRST, SECOND)]
    jobs = {"pods": targets, "extra": targets[:1]}
    with scraping(program, tmp_path, jobs) as prometheus, load(servers[FIRST]):
        samples = await prometheus.until("chat", [FIRST, SECOND], lambda samples: bool(samples.doubtful))
        assert samples.doubtful == (
            f"{FIRST} is scraped 2 times (job extra and pods): leave it one scrape job or monitor",
        )
        samples = await prometheus.until("chat", [SECOND], lambda samples: bool(samples.replicas))
        assert samples.doubtful == (), "who does not serve does not matter"
        (waiting,) = await prometheus.ask(keda_queries("team", "chat", EVERYTHING)["waitingRequests"])
        assert waiting.value == 2


async def test_a_prometheus_that_has_stopped_makes_all_doubtful(both: Scraping) -> None:
    await both.until_whole("chat", FIRST, SECOND)
    both.stop()
    samples = await both.samples("chat", FIRST, SECOND)
    assert (samples.replicas, samples.missing) == ((), ())
    (words,) = samples.doubtful
    assert words.startswith(f"Prometheus at {both.url} can't be reached: ")


async def test_what_prometheus_has_against_a_query_is_said(both: Scraping) -> None:
    with pytest.raises(PrometheusError, match=r"answers 400: .*parse error: unclosed left parenthesis"):
        await both.ask("sum(up")
    below = replace(both, url=both.url.removesuffix("/prom"))
    with pytest.raises(PrometheusError, match=r"there is no Prometheus at .* \(404\)"):
        await below.ask("up")


async def test_samples_of_a_relay_that_tells_old_ones_are_stale(program: str, servers: Servers, tmp_path: Path) -> None:
    """Times of its own come from push gateways and federation; Prometheus then never marks a series as gone."""
    page = await page_of(servers[FIRST])
    old = int((time.time() - 2 * FRESH) * 1000)
    lines = [line if line.startswith("#") else f"{line} {old}" for line in page.splitlines()]
    with (
        relay("\n".join(lines) + "\n") as port,
        scraping(program, tmp_path, {"relay": [Target(port, FIRST)]}) as prometheus,
    ):
        samples = await prometheus.until(
            "chat", [FIRST], lambda samples: any("ago" in words for words in samples.missing)
        )
        assert samples.replicas == ()
        assert samples.missing[0].startswith(f"{FIRST} was last scraped 1")


async def page_of(server: Running) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as response:
        return await response.text()


@contextmanager
def relay(page: str) -> Iterator[int]:
    """A page that stays as it is; its port."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
