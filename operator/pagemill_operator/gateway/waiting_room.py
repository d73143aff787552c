"""Requests that wait for a replica: how many and how much of them the process holds, and for how long each.

Each deployment has an equal share of the room, so that a sleeping one with many clients leaves the others theirs. Used by `proxy`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pagemill_operator.gateway.errors import Unavailable
from pagemill_operator.gateway.served import Place, Served


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Of the whole process. From the command's flags."""

    requests: int = 1000
    size: int = 64 << 20  # bytes of their bodies


class WaitingRoom:
    """`deployments` is asked how many there are to share the room."""

    def __init__(
        self,
        limits: RoomLimits,
        deployments: Callable[[], int] = lambda: 1,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.closed = False  # the process ends: nobody waits any longer
        self._limits = limits
        self._deployments = deployments
        self._waited = waited
        self._held = 0
        self._bytes = 0

    @contextlib.contextmanager
    def place(self, served: Served, size: int) -> Iterator[Place]:
        """For one request with a body of `size` bytes. Raises Unavailable where there is none."""
        if not self._fits(served, size):
            raise Unavailable(
                f"No replica of {served.route.deployment} is ready and as many requests wait for one as may.",
                "too_many_waiting",
            )
        began = time.monotonic()
        self._held, self._bytes = self._held + 1, self._bytes + size
        try:
            with served.holding(size) as place:
                yield place
        finally:
            self._held, self._bytes = self._held - 1, self._bytes - size
            self._waited(time.monotonic() - began)

    def _fits(self, served: Served, size: int) -> bool:
        if self._held >= self._limits.requests or self._bytes + size > self._limits.size:
            return False
        if not served.held:  # a share may be smaller than one body
            return True
        sharing = max(self._deployments(), 1)
        share = max(self._limits.requests // sharing, 1)
        return served.held < share and served.held_bytes + size <= self._limits.size // sharing
