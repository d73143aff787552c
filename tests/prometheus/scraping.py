"""A real Prometheus on a free port, which scrapes what it is given, and what the operator would ask of it.

`scraping(program, folder, jobs)` is a context manager. It serves below a path, as it does behind many an ingress.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp.test_utils import unused_port

from pagemill_operator.cluster.prometheus import answers, query
from pagemill_operator.queries import SCRAPED, signal_queries
from pagemill_operator.samples import Series, from_prometheus
from pagemill_operator.signals import Samples

PREFIX = "/prom"
PATIENCE = 60.0  # seconds
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Target:
    """One pod, as discovery would label it."""

    port: int
    pod: str
    namespace: str = "team"


@dataclass(frozen=True)
class Scraping:
    url: str
    process: subprocess.Popen[bytes]
    config: Path

    async def ask(self, promql: str) -> list[Series]:
        async with aiohttp.ClientSession() as session:
            return await query(session, self.url, promql)

    async def samples(self, name: str, *serving: str) -> Samples:
        """What the operator makes of it."""
        async with aiohttp.ClientSession() as session:
            told = await answers(session, self.url, signal_queries("team", name))
        return from_prometheus(datetime.now(UTC), serving, 0, told, 0)

    async def until(self, name: str, serving: Sequence[str], right: Callable[[Samples], bool]) -> Samples:
        deadline = time.monotonic() + PATIENCE
        while not right(samples := await self.samples(name, *serving)):
            assert time.monotonic() < deadline, samples
            await asyncio.sleep(0.1)
        return samples

    async def until_scraped(self, name: str, since: float) -> None:
        """Until it has scraped each pod at that time, in seconds since 1970, or later."""
        deadline = time.monotonic() + PATIENCE
        while min((found.value for found in await self.ask(signal_queries("team", name)[SCRAPED])), default=0) < since:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)

    async def until_whole(self, name: str, *serving: str) -> Samples:
        """Until it knows all of each pod, rates too: two scrapes."""

        def whole(samples: Samples) -> bool:
            rates = [found.preemptions_per_second for found in samples.replicas]
            return len(rates) == len(serving) and None not in rates

        return await self.until(name, serving, whole)

    def discover(self, jobs: Mapping[str, Sequence[Target]]) -> None:
        """Scrape these from now on."""
        _configure(self.config, jobs)
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def scraping(program: str, folder: Path, jobs: Mapping[str, Sequence[Target]]) -> Iterator[Scraping]:
    """`jobs`: by name, what each scrapes every second."""
    port = unused_port()
    config = folder / "prometheus.yml"
    _configure(config, jobs)
    url = f"http://127.0.0.1:{port}{PREFIX}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--web.external-url={url}"]
    log = folder / "prometheus.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        running = Scraping(url, process, config)
        try:
            _wait_until_ready(running, log)
            yield running
        finally:
            running.stop()


def _configure(config: Path, jobs: Mapping[str, Sequence[Target]]) -> None:
    configured = [
        {
            "job_name": job,
            "scrape_interval": "1s",
            "static_configs": [
                {"targets": [f"127.0.0.1:{each.port}"], "labels": {"namespace": each.namespace, "pod": each.pod}}
                for each in targets
            ],
        }
        for job, targets in jobs.items()
    ]
    config.write_text(json.dumps({"global": {"scrape_timeout": "1s"}, "scrape_configs": configured}))  # YAML holds JSON


def _wait_until_ready(running: Scraping, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _answers(f"{running.url}/-/ready"):
        assert running.process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False
