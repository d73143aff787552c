"""Whatever answers on a replica's ports, and whatever a hand writes into annotations: never an exception, and a status that stays.

A user's image, a sidecar or a half-broken server may answer anything. The status must be one that the API server takes and gives
back as it is, or it would be written again at every look.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill.preflight_report import parse_report
from pagemill_operator.cluster.http_probe import ask
from pagemill_operator.cluster.interface import ClusterError, Key, Probe
from pagemill_operator.labels import DELETION_COST_ANNOTATION, DRAIN_ANNOTATION, PREFLIGHT_ANNOTATION
from pagemill_operator.reconcile import reconcile
from tests.operator.golden_cases import MANAGED
from tests.operator.manifests import stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import CAPACITY, SERVING, ended, running, unscheduled, waiting
from tests.operator.status_schema import check_status

KEY = Key("team", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)

# As Python's json reads them: NaN, Infinity, lone surrogates and numbers of any size among them.
_SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats()),
    st.sampled_from(
        [10**30, -1, "Serving", "Draining", "LoadingWeights", "two\nlines", "\ud800", "x" * 60_000, "½", ""]
    ),
    st.text(max_size=5),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_CAPACITIES = _JSON | st.fixed_dictionaries(dict.fromkeys(CAPACITY, _SCALARS)) | st.just(CAPACITY)


def _bodies(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Probe]:
    bodies = st.fixed_dictionaries({}, optional=fields)
    return st.builds(Probe, st.sampled_from([0, 200, 400, 401, 500, 503]), bodies)


_READY = _bodies(ready=_JSON, phase=_JSON, percent=_JSON, capacity=_CAPACITIES, settings=_JSON)
_CONFIG = _bodies(settings=_JSON, error=_JSON)
_DRAIN = _bodies(draining=_JSON, drained=_JSON, inFlight=_JSON)
_TIMES = ["", "soon", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59+00:00"]
_NOTES = st.fixed_dictionaries(
    {},
    optional={DRAIN_ANNOTATION: st.sampled_from(_TIMES), DELETION_COST_ANNOTATION: st.sampled_from(["-1000", "x", ""])},
)
_KUBELETS = st.sampled_from([running(True), running(False), waiting("ContainerCreating"), ended(1, "no\n\x00line")])


async def _two_looks(cluster: MemoryCluster, generation: int) -> None:
    for _ in range(4):  # a drain, its mark, its price, its end
        await reconcile(cluster, KEY, NOW, MANAGED)
        check_status(cluster.status(KEY), generation)
        cluster.observe_deployment()
    cluster.writes.clear()
    for minute in range(3):
        again = await reconcile(cluster, KEY, NOW + timedelta(milliseconds=minute), MANAGED)
        assert again is None or again >= 1
    assert cluster.writes == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_KUBELETS, _READY, _CONFIG, _DRAIN, _NOTES), min_size=1, max_size=3), st.integers(0, 3))
def test_a_replica_may_answer_anything(
    replicas: list[tuple[dict[str, Any], Probe, Probe, Probe, dict[str, str]]], wanted: int
) -> None:
    async def live() -> None:
        cluster = MemoryCluster(stored(replicas=len(replicas)))
        await reconcile(cluster, KEY, NOW, MANAGED)
        for number, (kubelet, ready, config, drain, notes) in enumerate(replicas):
            name = f"chat-{number}"
            cluster.put_pod(name, kubelet, ready)
            cluster.objects["Pod", name]["metadata"]["annotations"] |= notes
            cluster.management |= {(name, "/config"): config, (name, "/drain"): drain}
        cluster.edit(KEY, replicas=wanted, schedulingPolicy="fair")
        await _two_looks(cluster, 2)

    asyncio.run(live())


@pytest.mark.parametrize(
    "body",
    [
        {"percent": float("nan"), "phase": "LoadingWeights"},
        {"percent": float("inf"), "phase": "LoadingWeights"},
        {"capacity": {**CAPACITY, "kvBlocks": 10**30}},
        {"phase": "two\nlines"},
        {"phase": "\ud800"},
        {"phase": "x" * 60_000},
    ],
    ids=["NaN", "infinity", "beyond 64 bits", "lines", "surrogate", "long"],
)
async def test_ready_with_a_value_that_is_none(body: dict[str, Any]) -> None:
    cluster = MemoryCluster(stored())
    await reconcile(cluster, KEY, NOW, MANAGED)
    cluster.put_pod("chat-0", running(False), Probe(503, body))
    await _two_looks(cluster, 1)


@pytest.mark.parametrize("text", [b"[" * 60_000, b'{"phase": ' * 6_000, b"9" * 60_000, b"\xff\xfe", b"null", b""])
async def test_no_answer_is_an_exception(text: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession() as session:
        assert await ask(session, "GET", f"http://127.0.0.1:{port}/ready", 2) == Probe(200, {})


@pytest.mark.parametrize("since", _TIMES)
async def test_a_drain_mark_may_say_anything(since: str) -> None:
    cluster = MemoryCluster(stored(replicas=2))
    await reconcile(cluster, KEY, NOW, MANAGED)
    for name in ("chat-0", "chat-1"):
        cluster.put_pod(name, running(True), SERVING)
        cluster.objects["Pod", name]["metadata"]["annotations"] |= {DRAIN_ANNOTATION: since}
    cluster.edit(KEY, replicas=1)
    await reconcile(cluster, KEY, NOW, MANAGED)


@pytest.mark.parametrize(
    "found",
    [
        {"fit": "Fits", "capacity": {"kvBlocks": 1}},
        {"fit": "Fits", "capacity": {**CAPACITY, "kvBlocks": float("inf")}},
        {"fit": "Fits", "capacity": {**CAPACITY, "kvBlocks": 1 << 63}},
        {"fit": "Fits", "capacity": "abc"},
        {"fit": "Fits", "revision": "two\nlines"},
        {"fit": "Fits", "pinned": "\ud800"},
        {"fit": "Fits", "pinned": ""},
    ],
)
async def test_a_report_that_is_none_is_not_believed(found: dict[str, Any]) -> None:
    """Of another program that the user's image has there, or from a hand's edit of the annotation."""
    assert parse_report(json.dumps({"passed": found})) is None
    cluster = MemoryCluster(stored())
    await reconcile(cluster, KEY, NOW, MANAGED)
    deployment = cluster.child("Deployment")
    carried = deployment["spec"]["template"]["metadata"]["annotations"]["pagemill.dev/template-hash"]
    text = json.dumps({"template": carried, "model": "m", **found})
    deployment["metadata"]["annotations"] |= {PREFLIGHT_ANNOTATION: text}
    await _two_looks(cluster, 1)


@pytest.mark.parametrize("words", ["denied:\n\n  - line\n\t- line", "\ud800", "x" * 100_000])
async def test_whatever_a_webhook_or_a_scheduler_says_is_one_line(words: str) -> None:
    cluster = MemoryCluster(stored())
    await reconcile(cluster, KEY, NOW, MANAGED)
    cluster.put_pod("chat-0", unscheduled(words))
    cluster.edit(KEY, monitoring={"podMonitor": True})
    cluster.refuse["PodMonitor"] = ClusterError(words, refused=True)
    await _two_looks(cluster, 2)
