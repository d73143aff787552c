"""The Service of one machine: the gateway's proxy behind one port of it, before the replicas of one deployment.

Least load, streams, what is tried again, and the wait at zero are the gateway's; here it is only told who is ready, by `refresh`.
Called by `cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagemill_operator.cluster.local.pod_status import LOCAL_ADDRESS
from pagemill_operator.gateway.body import Bodies, BodyLimits
from pagemill_operator.gateway.door import Door
from pagemill_operator.gateway.key_door import KeyDoor
from pagemill_operator.gateway.proxy import Proxy
from pagemill_operator.gateway.route import KEYS_FOLDER, Route, Target
from pagemill_operator.gateway.served import Served
from pagemill_operator.gateway.upstream import Upstream
from pagemill_operator.gateway.waiting_room import RoomLimits, WaitingRoom


class Front:
    """Open with `open`, close with `close`. `ready_ports` and `route` are asked at every `refresh`.

    Nobody waits where no `route` is given. `stirred` is called when the first request is held and when none is any more.
    """

    def __init__(
        self,
        port: int,
        name: str,
        ready_ports: Callable[[], Iterable[int]],
        route: Callable[[], Route] | None = None,
        stirred: Callable[[], None] = lambda: None,
    ) -> None:
        self.port = port
        self._ready_ports = ready_ports
        self._route = route or (lambda: Route(name, port, wake_timeout_seconds=0))
        self._served = Served(self._target(), stirred=stirred)
        self._upstream = Upstream()
        keys = KeyDoor(KEYS_FOLDER)  # asked for nothing: a deployment with keys needs a cluster
        proxy = Proxy(self._upstream, keys, Bodies(BodyLimits()), WaitingRoom(RoomLimits()))
        self._door = Door(proxy, LOCAL_ADDRESS, port, self._served, ending=lambda: False)

    @property
    def held(self) -> int:
        """Requests that wait for a replica."""
        return self._served.held

    async def open(self) -> None:
        """Listen on 127.0.0.1. Raises OSError when the port is taken."""
        await self._upstream.__aenter__()
        try:
            await self._door.open()
        except (OSError, OverflowError):
            await self._upstream.__aexit__()
            raise

    def refresh(self) -> None:
        """Something about its replicas or its resource has changed."""
        self._served.update(self._target())

    async def close(self) -> None:
        """Stop listening and cut what still runs."""
        self._served.leave()
        await self._door.close()
        await self._upstream.__aexit__()

    def _target(self) -> Target:
        return Target(self._route(), frozenset(f"{LOCAL_ADDRESS}:{port}" for port in self._ready_ports()))
