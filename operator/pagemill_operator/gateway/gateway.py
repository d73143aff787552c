"""All that one gateway serves: deployments and their doors, brought in line with each new table of routes, and its end.

Knows nothing of where tables come from: `command` gives it those of a cluster, the local cluster its own. A port that is no longer
wanted goes on for the route's lame duck, because the endpoints that lead to it take time to spread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field

from pagemill_operator.gateway.body import Bodies, BodyLimits
from pagemill_operator.gateway.door import Door
from pagemill_operator.gateway.key_door import KeyDoor
from pagemill_operator.gateway.proxy import Patience, Proxy
from pagemill_operator.gateway.route import KEYS_FOLDER, RouteTable
from pagemill_operator.gateway.served import Served
from pagemill_operator.gateway.upstream import Upstream
from pagemill_operator.gateway.waiting_room import RoomLimits, WaitingRoom

_RETRY_SECONDS = 1.0  # until a port that was taken is tried again
_LAST_WORDS_SECONDS = 1.0  # for those who still wait to be told that the process ends

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """From the command's flags."""

    host: str | None = None  # None: every address of the machine
    keys_folder: str = KEYS_FOLDER
    room: RoomLimits = field(default_factory=RoomLimits)
    bodies: BodyLimits = field(default_factory=BodyLimits)
    patience: Patience = field(default_factory=Patience)


class Gateway:
    """Use with `async with`; leaving it cuts what still runs, `drain` before that lets it finish."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        waited: Callable[[float], None] = lambda _: None,
        stirred: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.served: dict[str, Served] = {}
        self.draining = False
        self._config, self._stirred = config, stirred
        self._upstream = Upstream()
        self._keys = KeyDoor(config.keys_folder)
        self._room = WaitingRoom(config.room, lambda: len(self.served), waited)
        self._proxy = Proxy(self._upstream, self._keys, Bodies(config.bodies), self._room, config.patience)
        self._doors: dict[int, Door] = {}
        self._wanted: Mapping[int, Served] = {}
        self._told = False  # the first table is in
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Gateway:
        await self._upstream.__aenter__()
        self._begin(self._keys.follow())
        self._begin(self._open_what_failed())
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(door.close() for door in self._doors.values()))
        await self._upstream.__aexit__(*error)

    @property
    def ready(self) -> bool:
        """Every port of the last table listens."""
        return self._told and not self.draining and all(port in self.ports for port in self._wanted)

    @property
    def ports(self) -> tuple[int, ...]:
        """Those that listen and are wanted."""
        return tuple(sorted(port for port in self._wanted if port in self._doors and self._doors[port].listens))

    async def apply(self, table: RouteTable) -> None:
        """Serve exactly these."""
        async with self._changing:
            for name in self.served.keys() - table.keys():
                _LOG.info("%s is no longer served", name)
                self.served.pop(name).leave()
            for name, target in table.items():
                if name not in self.served:
                    _LOG.info("%s is served on port %d", name, target.route.port)
                    self.served[name] = Served(target, stirred=lambda name=name: self._stirred(name))  # type: ignore[misc]
                else:
                    self.served[name].update(target)
            await self._keys.want(name for name, target in table.items() if target.route.keys)
            self._wanted = _by_port(self.served)
            for port, served in self._wanted.items():
                await self._open(port, served)
            for port, door in self._doors.items():
                if port not in self._wanted and not door.retiring:
                    door.retiring = True
                    self._begin(self._retire(door))
            self._told = True

    async def drain(self, grace: float) -> None:
        """Let what runs finish: new requests are taken for the lame duck's time, then none; all within `grace` seconds."""
        self.draining = True
        deadline = time.monotonic() + grace
        doors = list(self._doors.values())
        # Of those, too, that are served no longer and finish what they run.
        routes = [door.served.route for door in doors]
        await asyncio.sleep(min(grace, max((route.lame_duck_seconds for route in routes), default=0)))
        for door in doors:
            await door.stop_listening()
        patience = min(deadline - time.monotonic(), max((route.drain_timeout_seconds for route in routes), default=0))
        last = min(_LAST_WORDS_SECONDS, patience / 2)
        await asyncio.gather(*(door.idle(patience - last) for door in doors))
        self._room.closed = True
        for door in doors:
            door.served.stir()
        await asyncio.gather(*(door.idle(last) for door in doors))

    async def _open(self, port: int, served: Served) -> None:
        door = self._doors.get(port)
        if door is not None and door.listens:
            door.served, door.retiring = served, False
            return
        door = Door(self._proxy, self._config.host, port, served, lambda: self.draining)
        try:
            await door.open()
        except OSError as error:
            _LOG.error("port %d of %s can't be opened: %s", port, served.route.deployment, error.strerror or error)
            return
        self._doors[port] = door

    async def _open_what_failed(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            async with self._changing:
                for port, served in self._wanted.items():
                    if not self.draining and port not in self.ports:
                        await self._open(port, served)

    async def _retire(self, door: Door) -> None:
        route = door.served.route
        await asyncio.sleep(route.lame_duck_seconds)
        async with self._changing:
            if not door.retiring:  # another deployment has got the port meanwhile
                return
            await door.stop_listening()
        try:
            await door.idle(route.drain_timeout_seconds)
        finally:
            await door.close()
            if self._doors.get(door.port) is door:
                del self._doors[door.port]

    def _begin(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _by_port(served: Mapping[str, Served]) -> Mapping[int, Served]:
    """Of two that ask for one port the first by name has it: the operator gives each its own."""
    wanted: dict[int, Served] = {}
    for name in sorted(served):
        other = wanted.setdefault(served[name].route.port, served[name])
        if other is not served[name]:
            _LOG.error("%s and %s ask for port %d", other.route.deployment, name, other.route.port)
    return wanted
