"""The course of one request through the gateway: key, body, a replica, the answer; and the wait while no replica is ready.

A request is sent a second time only when nothing of the first try can have been computed: the replica could not be reached, or
said 503 with Retry-After, as one does that drains or loads. Called by `door` for every request.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from pagemill.endpoints import OPEN_PATHS
from pagemill_operator.gateway import answers
from pagemill_operator.gateway.body import Bodies, Body
from pagemill_operator.gateway.early import EarlyStream
from pagemill_operator.gateway.errors import BadRequest, Refusal, Unavailable
from pagemill_operator.gateway.key_door import KeyDoor
from pagemill_operator.gateway.prompt import prefix_key, wants_stream
from pagemill_operator.gateway.route import Route
from pagemill_operator.gateway.served import Served
from pagemill_operator.gateway.upstream import REQUEST_ID, Unreachable, Upstream, copied, relay
from pagemill_operator.gateway.waiting_room import WaitingRoom

_FIT_ID = re.compile(r"[A-Za-z0-9._~+/=:@|,-]{1,128}")  # as the server takes one over


@dataclass(frozen=True, slots=True)
class Patience:
    """Of a client that waits for its stream."""

    first_comment: float = 3.0  # seconds without an answer; before that it may still be an ordinary error
    between_comments: float = 5.0


class _NotNow(Exception):
    """The replica takes nothing new."""


@dataclass(slots=True)
class _Visit:
    """What is known of a request under way."""

    request: web.BaseRequest
    served: Served
    body: Body
    key: bytes | None
    holds: bool  # it may wait for a replica
    early: EarlyStream
    request_id: str
    tried: set[str] = field(default_factory=set)
    until: float = 0.0  # the end of its wait, once it has had to wait
    comment_at: float = 0.0  # and when its client next wants a sign of life
    streams: bool | None = None  # None: not looked at yet

    def pick(self) -> str | None:
        """Who is asked next. Who may wait rather does than ask those that have just taken nothing."""
        return self.served.pick(self.key, self.tried, patient=self.holds)


class Proxy:
    """One for all ports of a process."""

    def __init__(
        self,
        upstream: Upstream,
        keys: KeyDoor,
        bodies: Bodies,
        room: WaitingRoom,
        patience: Patience | None = None,
    ) -> None:
        self._upstream, self._keys, self._bodies, self.room = upstream, keys, bodies, room
        self._patience = patience or Patience()

    async def serve(self, request: web.BaseRequest, served: Served, closing: Callable[[], bool]) -> web.StreamResponse:
        """`closing`: this connection should carry no further request."""
        outcome, request_id = "gone", _request_id(request)
        try:
            try:
                response, outcome = await self._course(request, served, request_id, closing)
            except Refusal as refusal:
                response, outcome = answers.refused(refusal), refusal.outcome
            except ConnectionError:  # the client has gone
                raise
            except Exception:
                outcome = "failed"
                raise
            if not response.prepared:
                response.headers.setdefault(REQUEST_ID, request_id)
                if closing():
                    response.force_close()
            return response
        finally:
            served.outcomes[outcome] += 1

    async def _course(
        self, request: web.BaseRequest, served: Served, request_id: str, closing: Callable[[], bool]
    ) -> tuple[web.StreamResponse, str]:
        if not request.raw_path.startswith("/"):  # `*`, CONNECT's host, a whole URL: what a proxy is asked
            raise BadRequest(f"{request.raw_path[:200]} is not a path.", "invalid_http")
        if served.route.keys and request.path not in OPEN_PATHS:
            self._keys.check(served.route.deployment, request.headers.get("Authorization", ""))
        holds = (
            request.method == "POST" and request.path in answers.MODEL_PATHS and served.route.wake_timeout_seconds > 0
        )
        if not holds and not served.replicas:
            return answers.without_replicas(served.route, request.method, request.path), "answered"
        body = await self._bodies.read(request)
        try:
            prefix = holds and served.route.routing == "prefix"
            key = prefix_key(bytes(body.data), served.route.block_size) if prefix else None
            early = EarlyStream(request, request_id, closing())
            visit = _Visit(request, served, body, key, holds, early, request_id)
            return await self._exchange(visit, closing)
        finally:
            body.release()

    async def _exchange(self, visit: _Visit, closing: Callable[[], bool]) -> tuple[web.StreamResponse, str]:
        try:
            while True:
                address = visit.pick()
                if address is None:
                    await self._wait(visit)
                    continue
                visit.tried.add(address)
                try:
                    with visit.served.running_on(address):
                        return await self._ask(visit, address, closing)
                except (Unreachable, _NotNow):
                    visit.served.avoid(address)
        except Refusal as refusal:
            if visit.early.response is None:
                raise
            await visit.early.fail(refusal)
            return visit.early.response, refusal.outcome

    async def _ask(self, visit: _Visit, address: str, closing: Callable[[], bool]) -> tuple[web.StreamResponse, str]:
        request = visit.request
        async with self._upstream.asked(request, visit.body, address, visit.request_id) as answer:
            if answer.status == 503 and "Retry-After" in answer.headers and (visit.holds or visit.pick() is not None):
                raise _NotNow
            visit.served.trust(address)
            visit.body.release()
            if visit.early.response is not None:
                return visit.early.response, await visit.early.continued(answer)
            response = copied(answer)
            if closing():
                response.force_close()
            await response.prepare(request)
            whole = await relay(answer, request, response)
            return response, ("failed" if answer.status >= 500 else "answered") if whole else "cut"

    async def _wait(self, visit: _Visit) -> None:
        """Until there is somebody to ask. Raises Unavailable when nobody came in time, or where there is no room to wait."""
        served, patience = visit.served, self._patience
        visit.tried.clear()
        if not visit.holds:
            raise answers.no_replica(served.route)
        now = time.monotonic()
        if not visit.until:
            visit.until = now + served.route.wake_timeout_seconds
            visit.comment_at = now + patience.first_comment
        with self.room.place(served, len(visit.body)) as place:
            while visit.pick() is None:
                now = time.monotonic()
                if now >= visit.until or self.room.closed or served.gone:
                    raise _nobody_came(served.route, ending=self.room.closed)
                if now >= visit.comment_at:
                    await _show_life(visit)
                    visit.comment_at = now + patience.between_comments
                await place.change(min(visit.until, visit.comment_at, served.next_look()) - now)


async def _show_life(visit: _Visit) -> None:
    if visit.streams is None:
        visit.streams = wants_stream(bytes(visit.body.data))
    if visit.streams:
        await visit.early.comment()


def _nobody_came(route: Route, ending: bool) -> Unavailable:
    if ending:
        return Unavailable("The gateway is shutting down.", "shutting_down")
    said = f"No replica of {route.deployment} was ready within {route.wake_timeout_seconds} seconds."
    return Unavailable(said, "no_ready_replica")


def _request_id(request: web.BaseRequest) -> str:
    given = request.headers.get(REQUEST_ID, "")
    return given if _FIT_ID.fullmatch(given) else uuid.uuid4().hex
