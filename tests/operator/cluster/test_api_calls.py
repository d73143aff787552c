"""Calls over real HTTP: an API server that asks to be left alone or is away costs few requests, and nobody writes who may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from pagemill_operator.cluster.api import Api, NotLeading
from pagemill_operator.cluster.interface import ClusterError
from pagemill_operator.cluster.leases import ApiLease, lease_of
from pagemill_operator.cluster.pace import Pace
from pagemill_operator.lease import Lease


class Server:
    """Answers with `status` and `headers`, and counts."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[object] = []
        self.at_once = 0
        self.most_at_once = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.answer: dict[str, object] = {"kind": "Status", "message": "as told"}

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path))
        self.bodies.append(await request.json() if request.can_read_body else None)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.hold.wait()
        self.at_once -= 1
        return web.json_response(self.answer, status=self.status, headers=self.headers)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    served, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    async with TestServer(app) as running:
        yield served, str(running.make_url("/")).rstrip("/")


@pytest.fixture
def connected(server: tuple[Server, str]) -> Callable[..., Api]:
    def make(**more: object) -> Api:
        return Api(client.Configuration(host=server[1]), **more)  # type: ignore[arg-type]

    return make


async def test_retry_after_holds_every_caller(server: tuple[Server, str], connected: Callable[..., Api]) -> None:
    served = server[0]
    async with connected() as api:
        served.status, served.headers = 429, {"Retry-After": "1"}
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ClusterError) as caught:
            await api.call("GET", "/api/v1/pods")
        assert caught.value.retry_after == 1
        served.status = 200
        await asyncio.gather(*(api.call("GET", f"/api/v1/namespaces/{name}/pods") for name in "abcd"))
        assert loop.time() - began >= 0.9
        assert len(served.asked) == 5


async def test_a_long_retry_after_is_the_callers_to_wait_for(
    server: tuple[Server, str], connected: Callable[..., Api]
) -> None:
    served = server[0]
    async with connected() as api:
        served.status, served.headers = 429, {"Retry-After": "90"}
        for _ in range(5):
            with pytest.raises(ClusterError) as caught:
                await api.call("GET", "/api/v1/pods")
            assert 80 < caught.value.retry_after <= 90
        assert len(served.asked) == 1


async def test_an_outage_costs_few_requests_however_many_call(
    server: tuple[Server, str], connected: Callable[..., Api]
) -> None:
    served = server[0]
    async with connected(pace=Pace(jitter=lambda: 0.2)) as api:
        served.status = 503

        async def insist(number: int) -> None:
            for _ in range(10):
                with pytest.raises(ClusterError):
                    await api.call("GET", f"/api/v1/namespaces/n{number}/pods")

        callers = [asyncio.create_task(insist(number)) for number in range(8)]
        await asyncio.sleep(1.5)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert len(served.asked) <= 8 * 5, "pauses of 0.1, 0.2, 0.4, 0.8 seconds: at most five rounds"


async def test_calls_at_once_are_bounded(server: tuple[Server, str], connected: Callable[..., Api]) -> None:
    served = server[0]
    async with connected() as api:
        served.hold.clear()
        calls = [asyncio.create_task(api.call("GET", "/api/v1/pods")) for _ in range(60)]
        while served.at_once < 16:  # noqa: ASYNC110 - sockets are waited for
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        served.hold.set()
        await asyncio.gather(*calls)
        assert served.most_at_once == 16
        assert len(served.asked) == 60


async def test_who_does_not_lead_reads_and_does_not_write(
    server: tuple[Server, str], connected: Callable[..., Api]
) -> None:
    served, leads = server[0], False
    async with connected(may_write=lambda: leads) as api:
        await api.call("GET", "/api/v1/pods")
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(NotLeading):
                await api.call(method, "/api/v1/pods/p", body={})
        assert served.asked == [("GET", "/api/v1/pods")]
        leads = True
        await api.call("DELETE", "/api/v1/pods/p", body={})
        assert len(served.asked) == 2


async def test_each_call_is_recorded_with_what_came_of_it(
    server: tuple[Server, str], connected: Callable[..., Api]
) -> None:
    recorded: list[tuple[str, str, str]] = []
    async with connected(record=lambda verb, path, code, _: recorded.append((verb, path, code))) as api:
        await api.call("GET", "/api/v1/pods", query={"limit": "5"})
        server[0].status = 404
        assert await api.call("DELETE", "/api/v1/pods/p") is None
    async with Api(
        client.Configuration(host="http://127.0.0.1:1"),
        record=lambda verb, path, code, _: recorded.append((verb, path, code)),
    ) as nowhere:
        with pytest.raises(ClusterError):
            await nowhere.call("GET", "/version")
    assert recorded == [
        ("GET", "/api/v1/pods", "200"),
        ("DELETE", "/api/v1/pods/p", "404"),
        ("GET", "/version", "none"),
    ]


async def test_a_lease_is_made_replaced_by_its_version_and_missed_where_it_went_away(
    server: tuple[Server, str], connected: Callable[..., Api]
) -> None:
    served = server[0]
    lease = Lease("me", 15.0, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:01.000000Z", 2, "")
    stored = {
        "metadata": {"name": "l", "namespace": "ns", "resourceVersion": "8"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": lease.acquired,
            "renewTime": lease.renewed,
            "leaseTransitions": 2,
        },
    }
    async with connected() as api:
        store = ApiLease(api, "ns", "l")
        served.answer = stored
        written = await store.write(lease)
        assert written == Lease("me", 15.0, lease.acquired, lease.renewed, 2, "8")
        assert await store.write(written) == written
        assert await store.read() == written
        path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
        assert served.asked == [("POST", path), ("PUT", f"{path}/l"), ("GET", f"{path}/l")]
        created, replaced, _ = served.bodies
        assert isinstance(created, dict)
        assert isinstance(replaced, dict)
        assert created["spec"] == replaced["spec"] == stored["spec"]
        assert "resourceVersion" not in created["metadata"]
        assert replaced["metadata"]["resourceVersion"] == "8"
        served.status = 404
        assert await store.read() is None
        with pytest.raises(ClusterError, match="no namespace ns"):
            await store.write(written)


def test_a_lease_that_another_program_left_half_empty_is_free() -> None:
    lease = lease_of({"metadata": {"resourceVersion": "3"}})
    assert (lease.holder, lease.version, lease.transitions) == ("", "3", 0)
