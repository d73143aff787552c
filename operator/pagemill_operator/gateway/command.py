"""`pagemill gateway`: the process. Flags, what it follows, and its end by SIGTERM. A command of its own, since it needs so little.

Needs a cluster, whose pod's account may list and watch Services and EndpointSlices of its own namespace, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from pagemill import __version__
from pagemill.failures import PagemillError
from pagemill.sizes import format_size, parse_size
from pagemill_operator.gateway import cluster_watch
from pagemill_operator.gateway.admin import answering
from pagemill_operator.gateway.body import MAX_BODY_BYTES, BodyLimits
from pagemill_operator.gateway.cluster_watch import ACCOUNT_FOLDER, ClusterApi
from pagemill_operator.gateway.gateway import Gateway, GatewayConfig
from pagemill_operator.gateway.metrics import GatewayMetrics
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT, KEYS_FOLDER
from pagemill_operator.gateway.waiting_room import RoomLimits

GRACE_SECONDS = 600.0

_LOG = logging.getLogger("pagemill.gateway")


class _NoApi(Exception):
    """There is no API server to follow; the message says what was looked for."""


def run(argv: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; 1 where there is nothing to follow or the admin port is taken."""
    flags = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _allow_many_connections()
    try:
        asyncio.run(_serve(flags, _api(flags)))
    except (_NoApi, OSError) as error:
        sys.stderr.write(f"pagemill gateway: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    room, bodies = RoomLimits(), BodyLimits()
    parser = argparse.ArgumentParser(
        prog="pagemill gateway", description="Pass requests on to the replicas of a namespace."
    )
    parser.add_argument("--namespace", "-n", help="whose deployments (default: the pod's)")
    parser.add_argument("--host", help="listen on this address alone (default: all)")
    parser.add_argument("--admin-port", type=int, default=GATEWAY_ADMIN_PORT, help=f"default: {GATEWAY_ADMIN_PORT}")
    parser.add_argument("--keys-dir", metavar="DIR", default=KEYS_FOLDER, help=f"default: {KEYS_FOLDER}")
    parser.add_argument(
        "--grace-seconds", type=float, default=GRACE_SECONDS, help="after SIGTERM what still runs is cut (default: 600)"
    )
    parser.add_argument(
        "--max-held-requests",
        type=int,
        default=room.requests,
        help=f"that wait for a replica (default: {room.requests})",
    )
    parser.add_argument(
        "--max-held-bytes", type=_size, default=room.size, help=f"of their bodies (default: {format_size(room.size)})"
    )
    parser.add_argument(
        "--max-body-bytes", type=_size, default=MAX_BODY_BYTES, help=f"of one (default: {format_size(MAX_BODY_BYTES)})"
    )
    parser.add_argument(
        "--max-buffered-bytes",
        type=_size,
        default=bodies.memory,
        help=f"of all bodies at once (default: {format_size(bodies.memory)})",
    )
    parser.add_argument("--api-url", help="the API server (default: the pod's cluster)")
    parser.add_argument("--api-account", metavar="DIR", default=ACCOUNT_FOLDER, help="where its token and ca.crt lie")
    return parser


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except PagemillError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _api(flags: argparse.Namespace) -> ClusterApi:
    """Raises _NoApi."""
    account = Path(flags.api_account)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    url = flags.api_url
    if url is None:
        if not host:
            raise _NoApi("no cluster: not in a pod (KUBERNETES_SERVICE_HOST is not set), and no --api-url")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = flags.namespace
    if namespace is None:
        try:
            namespace = (account / "namespace").read_text().strip()
        except OSError as error:
            raise _NoApi(f"no namespace: no --namespace, and {account / 'namespace'}: {error.strerror}") from error
    token, authority = account / "token", account / "ca.crt"
    return ClusterApi(
        url.rstrip("/"),
        namespace,
        token_file=str(token) if token.exists() else None,
        ca_file=str(authority) if authority.exists() else None,
    )


def _allow_many_connections() -> None:
    """A stream takes two files, and the default of 1,024 is soon used up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(flags: argparse.Namespace, api: ClusterApi) -> None:
    ending, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        (at_once if ending.is_set() else ending).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    metrics = GatewayMetrics()
    config = GatewayConfig(
        host=flags.host,
        keys_folder=flags.keys_dir,
        room=RoomLimits(flags.max_held_requests, flags.max_held_bytes),
        bodies=BodyLimits(size=flags.max_body_bytes, memory=flags.max_buffered_bytes),
    )
    async with Gateway(config, waited=metrics.waited) as gateway:
        metrics.show(lambda: gateway.served)
        async with answering(flags.host, flags.admin_port, gateway, metrics):
            _LOG.info("pagemill gateway %s serves namespace %s of %s", __version__, api.namespace, api.url)
            following = asyncio.create_task(cluster_watch.follow(api, gateway.apply))
            stop = asyncio.create_task(ending.wait())
            await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                stop.cancel()
                following.result()
            _LOG.info("draining")
            draining = asyncio.create_task(gateway.drain(flags.grace_seconds))
            enough = asyncio.create_task(at_once.wait())
            await asyncio.wait((draining, enough), return_when=asyncio.FIRST_COMPLETED)
            for task in (following, draining, enough):
                task.cancel()
            await asyncio.gather(following, draining, enough, return_exceptions=True)
