"""The operator's process: `pagemill operator`, `python -m pagemill_operator`. Connects, waits for the CRD, runs until told to end.

Owns flags, the log's format and the order of the start: lists before events before the worker, so that no reconcile sees half a
cluster. kopf watches; `worker` acts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import aiohttp
import kopf

from pagemill import __version__
from pagemill_operator import handlers
from pagemill_operator.cluster.api import Api, NoCluster, connect
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.cluster.kubernetes import KubernetesCluster
from pagemill_operator.labels import GROUP, PLURAL
from pagemill_operator.liveness import answering
from pagemill_operator.queue import KeyQueue
from pagemill_operator.reconcile import reconcile
from pagemill_operator.settings import Settings, from_environ
from pagemill_operator.worker import Worker, resync

_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)  # the last one for good
_SAY_AGAIN_SECONDS = 60.0
_LOG = logging.getLogger("pagemill.operator")


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 1 where there is no cluster to connect to."""
    flags = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name, level in (("kopf", logging.WARNING), ("aiohttp.access", logging.WARNING), ("kubernetes", logging.ERROR)):
        logging.getLogger(name).setLevel(level)
    settings = from_environ(os.environ)
    if flags.server_image:
        settings = replace(settings, cpu_image=flags.server_image)
    if flags.server_image_gpu:
        settings = replace(settings, gpu_image=flags.server_image_gpu)
    try:
        asyncio.run(_operate(settings, tuple(flags.namespace or ()), flags.liveness))
    except NoCluster as error:
        sys.stderr.write(f"pagemill operator: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagemill operator", description="Run the Kubernetes operator.")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--namespace", "-n", action="append", help="serve this namespace (may be given again)")
    scope.add_argument("--all-namespaces", "-A", action="store_true", help="serve the whole cluster")
    parser.add_argument("--server-image", help="default image of servers on CPU")
    parser.add_argument("--server-image-gpu", help="default image of servers on GPU")
    parser.add_argument(
        "--liveness", metavar="URL", type=_http_url, help="answer liveness probes, e.g. http://0.0.0.0:8080/healthz"
    )
    return parser


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    try:
        if parts.scheme == "http" and parts.hostname and parts.port and parts.path:
            return text
    except ValueError:  # a port that is none
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not like http://0.0.0.0:8080/healthz")


async def _operate(settings: Settings, namespaces: tuple[str, ...], liveness: str | None) -> None:
    async with await connect() as api, aiohttp.ClientSession() as session:
        cache, queue = ObjectCache(), KeyQueue()
        cluster = KubernetesCluster(api, cache, session, namespaces)

        async def work(key: Key) -> float | None:
            return await reconcile(cluster, key, datetime.now(UTC), settings)

        async with answering(liveness):
            for key in await _first_list(api, cluster):
                queue.add(key)
        scope = ", ".join(namespaces) or "all namespaces"
        _LOG.info("pagemill-operator %s serves %s at %s", __version__, scope, api.host)
        worker = Worker(queue, work)
        acting = [asyncio.create_task(worker.run()), asyncio.create_task(resync(queue, cluster.refresh))]
        try:
            await kopf.operator(
                registry=handlers.register(cache, queue, worker),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                liveness_endpoint=liveness,
            )
        finally:
            for task in acting:
                task.cancel()
            await asyncio.gather(*acting, return_exceptions=True)


async def _first_list(api: Api, cluster: KubernetesCluster) -> tuple[Key, ...]:
    """Everything there is, as soon as the API answers, has our CRD and lets us read: said once a minute until then."""
    said: tuple[str, float] = ("", 0.0)
    for attempt in itertools.count():
        try:
            if await cluster.serves_resource():
                return await cluster.refresh()
            wanting = f"{api.host} has no {PLURAL}.{GROUP}: install the CRD (crds/ or the chart)"
        except ClusterError as error:
            wanting = str(error)
        if wanting != said[0] or time.monotonic() - said[1] >= _SAY_AGAIN_SECONDS:
            _LOG.warning("waiting: %s", wanting)
            said = (wanting, time.monotonic())
        await asyncio.sleep(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])
    raise AssertionError("itertools.count ends")


if __name__ == "__main__":
    sys.exit(main())
