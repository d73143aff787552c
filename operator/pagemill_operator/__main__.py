"""The operator's process: `pagemill operator`, `python -m pagemill_operator`. Connects, waits for the CRD, runs until told to end.

Owns flags, the log's format and the order of the start and of the end: lists before events before the worker, so that no
reconcile sees half a cluster. kopf watches, also on a standby, whose cache is warm when its turn comes; `worker` acts while
`lease` lets it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import kopf

from pagemill import __version__
from pagemill_operator import handlers
from pagemill_operator.admission import Verdict, judge
from pagemill_operator.admission_fit import largest_gpu
from pagemill_operator.admission_server import admitting
from pagemill_operator.cluster.api import Api, NoCluster, connect
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import ClusterError, Key
from pagemill_operator.cluster.kubernetes import KubernetesCluster
from pagemill_operator.cluster.leases import LEASE_NAME, ApiLease, identity, own_namespace
from pagemill_operator.cluster.operator_key import operator_key
from pagemill_operator.cluster.pace import Pace
from pagemill_operator.gateway_key import is_gateway, with_gateways
from pagemill_operator.labels import GROUP, PLURAL
from pagemill_operator.lease import RETRY_SECONDS, Alone, Election
from pagemill_operator.liveness import answering
from pagemill_operator.metrics import METRICS_PATH, METRICS_PORT, OperatorMetrics, ready_tally, serving
from pagemill_operator.namespace_gateway import reconcile_gateway
from pagemill_operator.queue import KeyQueue
from pagemill_operator.reconcile import reconcile
from pagemill_operator.scaling_memory import Memories
from pagemill_operator.settings import Settings, from_environ
from pagemill_operator.worker import Worker, resync

_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)  # the last one for good
_SAY_AGAIN_SECONDS = 60.0
_KOPF_END_SECONDS = 10.0
_LOG = logging.getLogger("pagemill.operator")


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 1 where there is no cluster, no port to listen on, or nothing watched any more."""
    parser = _parser()
    flags = parser.parse_args(argv)
    if flags.webhook_port is not None and not (flags.webhook_cert and flags.webhook_key):
        parser.error("--webhook-port needs --webhook-cert and --webhook-key")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name, level in (("kopf", logging.WARNING), ("aiohttp.access", logging.WARNING), ("kubernetes", logging.ERROR)):
        logging.getLogger(name).setLevel(level)
    settings = from_environ(os.environ)
    if flags.server_image:
        settings = replace(settings, cpu_image=flags.server_image)
    if flags.server_image_gpu:
        settings = replace(settings, gpu_image=flags.server_image_gpu)
    if flags.gateway_image:
        settings = replace(settings, gateway_image=flags.gateway_image)
    try:
        asyncio.run(_operate(flags, settings))
    except (NoCluster, OSError, _WatchEnded) as error:
        sys.stderr.write(f"pagemill operator: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagemill operator", description="Run the Kubernetes operator.")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--namespace", "-n", action="append", help="serve this namespace (may be given again)")
    scope.add_argument("--all-namespaces", "-A", action="store_true", help="serve the whole cluster")
    parser.add_argument("--server-image", help="default image of servers on CPU")
    parser.add_argument("--server-image-gpu", help="default image of servers on GPU")
    parser.add_argument("--gateway-image", help="image of namespaces' gateways: the operator's own")
    parser.add_argument(
        "--liveness", metavar="URL", type=_http_url, help="answer liveness probes, e.g. http://0.0.0.0:8080/healthz"
    )
    parser.add_argument(
        "--metrics-port", metavar="PORT", type=_port, help=f"serve {METRICS_PATH} there, e.g. {METRICS_PORT}"
    )
    lease = parser.add_argument_group("several operators", "The one that holds the Lease acts, the others stand by.")
    lease.add_argument("--lease-namespace", metavar="NAMESPACE", help="of the Lease; default: in a pod, its own")
    lease.add_argument("--lease-name", metavar="NAME", default=LEASE_NAME, help=f"default: {LEASE_NAME}")
    lease.add_argument("--no-lease", action="store_true", help="act at once: no other operator runs")
    webhook = parser.add_argument_group("admission webhook", "Off without --webhook-port; every replica answers.")
    webhook.add_argument("--webhook-port", metavar="PORT", type=_port, help="answer the API server there, e.g. 9443")
    webhook.add_argument("--webhook-cert", metavar="FILE", help="its certificate (PEM); a renewed one is taken over")
    webhook.add_argument("--webhook-key", metavar="FILE", help="and the certificate's key")
    return parser


def _port(text: str) -> int:
    if text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port from 1 to 65535")


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    try:
        if parts.scheme == "http" and parts.hostname and parts.port and parts.path:
            return text
    except ValueError:  # a port that is none
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not like http://0.0.0.0:8080/healthz")


class _WatchEnded(Exception):
    """kopf has given up; whoever started the process starts it again."""


async def _operate(flags: argparse.Namespace, settings: Settings) -> None:
    """Connect, look at everything once, then watch and run for the Lease until told to end."""
    stopping = asyncio.Event()
    _end_on_signals(stopping)
    metrics, cache, queue, wanted = OperatorMetrics(), ObjectCache(), KeyQueue(), asyncio.Event()
    namespaces = tuple(flags.namespace or ())
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serving(flags.metrics_port, metrics))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        lease_api = await stack.enter_async_context(await connect(record=metrics.called, pace=Pace(cap=RETRY_SECONDS)))
        election = _election(flags, lease_api)
        api = await stack.enter_async_context(await connect(may_write=election.leads, record=metrics.called))
        cluster = KubernetesCluster(api, cache, session, namespaces)
        home = flags.lease_namespace or own_namespace()

        async def prepare() -> None:
            nonlocal settings
            if home is not None:  # by the Lease's connection: a standby, too, has to make it or read it
                key = await operator_key(lease_api, home)
                settings = replace(settings, namespace=home, management_key=key)
                cluster.manage_by(key)
            await _list_all(api, cluster)

        async def work(key: Key) -> float | None:
            if is_gateway(key):
                return await reconcile_gateway(cluster, key.namespace, settings)
            return await reconcile(cluster, key, datetime.now(UTC), settings, memories)

        memories = Memories(metrics.decided)
        worker = Worker(queue, work, record=metrics.reconciled)
        metrics.watch(queue.__len__, queue.oldest_seconds, election.leads, lambda: ready_tally(cache.resources()))

        async def refresh() -> tuple[Key, ...]:
            return with_gateways(await cluster.refresh())

        async def act() -> None:
            for key in with_gateways(cache.keys()):
                queue.add(key)
            wanted.set()  # what was deleted while a watch began anew, no event has told
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                group.create_task(resync(queue, refresh, wanted))

        apis = (api,) if isinstance(election, Alone) else (api, lease_api)

        def problem() -> str | None:
            return worker.stuck() or cache.hearing.deaf(min(each.pace.answering_for() for each in apis))

        def heard(kind: str, event: str | None) -> None:
            metrics.heard(kind)
            if event is None:
                wanted.set()

        async with answering(flags.liveness):
            if not await _unless(stopping, _persist(prepare)):
                return

        async def judged(request: Mapping[str, Any]) -> Verdict:
            gpu_bytes = None
            with contextlib.suppress(ClusterError):  # without nodes there is one warning less
                gpu_bytes = largest_gpu(await cluster.nodes())
            return judge(request, cache.resources(), gpu_bytes)

        await stack.enter_async_context(
            admitting(flags.webhook_port, flags.webhook_cert or "", flags.webhook_key or "", judged)
        )
        scope = ", ".join(namespaces) or "all namespaces"
        _LOG.info("pagemill-operator %s serves %s at %s", __version__, scope, api.host)
        registry = handlers.register(cache, queue, problem=problem, heard=heard)
        await _watch_and_lead(registry, flags, election.run(act), stopping)


def _election(flags: argparse.Namespace, api: Api) -> Election | Alone:
    namespace = None if flags.no_lease else flags.lease_namespace or own_namespace()
    if namespace is None:
        return Alone()
    return Election(ApiLease(api, namespace, flags.lease_name), identity())


async def _watch_and_lead(
    registry: kopf.OperatorRegistry, flags: argparse.Namespace, lead: Coroutine[Any, Any, None], stopping: asyncio.Event
) -> None:
    """Until a signal or the end of either. The Lease is given back before kopf, which takes its time, is told to end."""
    ready, end = asyncio.Event(), asyncio.Event()

    async def told() -> None:
        await ready.wait()
        _end_on_signals(stopping)  # kopf has put its own in their place
        await stopping.wait()

    # What is begun after kopf it ends itself, in no order: so these come first.
    leading, telling = asyncio.create_task(lead), asyncio.create_task(told())
    watching = asyncio.create_task(
        kopf.operator(
            registry=registry,
            standalone=True,
            clusterwide=not flags.namespace,
            namespaces=tuple(flags.namespace or ()),
            liveness_endpoint=flags.liveness,
            ready_flag=ready,
            stop_flag=end,
        )
    )
    await asyncio.wait({leading, telling, watching}, return_when=asyncio.FIRST_COMPLETED)
    asked = stopping.is_set()
    leading.cancel()
    await asyncio.wait({leading})
    end.set()
    await asyncio.wait({watching}, timeout=_KOPF_END_SECONDS)
    for task in (telling, watching):
        task.cancel()
    led, watched, _ = await asyncio.gather(leading, watching, telling, return_exceptions=True)
    if isinstance(led, Exception):
        raise led
    if isinstance(watched, Exception) and not asked:
        raise _WatchEnded(f"the watch has ended: {type(watched).__name__}: {watched}") from watched


def _end_on_signals(stopping: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def _unless(stopping: asyncio.Event, doing: Coroutine[Any, Any, None]) -> bool:
    """Do it; False where it had to be left for the process to end."""
    task, told = asyncio.create_task(doing), asyncio.create_task(stopping.wait())
    await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    finished = task.done()
    for each in (task, told):
        each.cancel()
    result, _ = await asyncio.gather(task, told, return_exceptions=True)
    if isinstance(result, Exception):
        raise result
    return finished


async def _persist(prepare: Callable[[], Awaitable[None]]) -> None:
    """As soon as the API answers, has our CRD and lets us read: what is wanting is said once a minute until then."""
    said: tuple[str, float] = ("", 0.0)
    for attempt in itertools.count():
        try:
            await prepare()
            return
        except ClusterError as error:
            wanting = str(error)
        if wanting != said[0] or time.monotonic() - said[1] >= _SAY_AGAIN_SECONDS:
            _LOG.warning("waiting: %s", wanting)
            said = (wanting, time.monotonic())
        await asyncio.sleep(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])


async def _list_all(api: Api, cluster: KubernetesCluster) -> None:
    """Everything there is into the cache."""
    if not await cluster.serves_resource():
        raise ClusterError(f"{api.host} has no {PLURAL}.{GROUP}: install the CRD (crds/ or the chart)")
    await cluster.refresh()


if __name__ == "__main__":
    sys.exit(main())
