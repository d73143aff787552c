"""How much of one limit a minute is used: a bucket that drains evenly, a whole limit in a minute.

So who was quiet may use the limit at once and goes on at its rate. It may be overdrawn, and what is overdrawn is waited for. Pure
but for its clock. Used by `visit` and `quotas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_MINUTE = 60.0  # seconds
_DUST = 1e-6  # of a token: what rounding may leave


class Bucket:
    """The limit may change between two calls; what was used stays. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used = 0.0
        self._at = clock()

    def used(self, limit: int) -> float:
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at) * limit / _MINUTE)
        self._at = now
        return self._used

    def take(self, amount: float, limit: int) -> None:
        """A negative amount gives back."""
        self._used = max(0.0, self.used(limit) + amount)

    def wait(self, amount: float, limit: int) -> float:
        """Seconds until so much may be used; 0: now. More than the limit may be used once nothing of it is."""
        over = self.used(limit) + min(amount, limit) - limit
        return over * _MINUTE / limit if over > _DUST else 0.0

    def remaining(self, limit: int) -> int:
        return max(0, math.floor(limit - self.used(limit) + _DUST))

    def reset(self, limit: int) -> float:
        """Seconds until nothing is used."""
        return self.used(limit) * _MINUTE / limit


def duration(seconds: float) -> str:
    """As OpenAI spells it: 120ms, 7s, 6m0s, 1h0m5s. Rounded up."""
    if 0 < seconds <= 0.999:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
