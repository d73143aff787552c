"""Why a thread came late: what it computed itself, what it waited for a processor, and for the interpreter's lock; and searches for
garbage, in which nobody has the lock.

The kernel counts the first two for each thread, so what is left of a wait is the lock's (or any other's that the thread slept on).
Used by `loop_delay`.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Look:
    """Seconds."""

    late: float
    own: float  # the thread's processor time since the look before
    core: float  # it could have run and had no processor
    garbage: float  # searches for garbage, in any thread
    streaming: bool = False  # all streams ran

    @property
    def lock(self) -> float:
        """What is left."""
        return max(0.0, self.late - self.own - self.core)

    def as_json(self) -> dict[str, Any]:
        """Milliseconds."""
        names = [field.name for field in fields(self) if field.name != "streaming"]
        return {name: round(1000 * getattr(self, name), 2) for name in (*names, "lock")} | {"streaming": self.streaming}


class Clocks:
    """Of the thread that enters `read`; zeros for a processor's wait where the kernel doesn't count it."""

    def __init__(self) -> None:
        self._searching = 0.0  # seconds, all of them
        self._since = 0.0
        self._counted: int | None = None
        self._before = (0.0, 0.0, 0.0)

    @contextmanager
    def read(self) -> Iterator[Clocks]:
        gc.callbacks.append(self._search)
        try:
            self._counted = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._counted = None
        try:
            self._before = self._now()
            yield self
        finally:
            gc.callbacks.remove(self._search)
            if self._counted is not None:
                os.close(self._counted)

    def look(self, late: float, *, streaming: bool) -> Look:
        """Since the look before, or since it was entered."""
        now = self._now()
        own, core, garbage = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return Look(late, own, core, garbage, streaming)

    def _now(self) -> tuple[float, float, float]:
        waited = 0 if self._counted is None else int(os.pread(self._counted, 100, 0).split()[1])
        return time.thread_time(), waited / 1e9, self._searching

    def _search(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._since = time.perf_counter()
        else:
            self._searching += time.perf_counter() - self._since


def reasons(looks: Sequence[Look], limit: float) -> list[str]:
    """A line for the looks that came later than `limit`, and one for each of the latest."""
    slow = sorted((look for look in looks if look.late > limit), key=lambda look: look.late, reverse=True)
    if not slow:
        return []
    named = {name: sum(getattr(look, name) for look in slow) / len(slow) for name in ("late", *_PARTS)}
    lines = [f"{len(slow)} looks later than {1000 * limit:g} ms, in the mean {_told(named)}"]
    return lines + ["  " + _told({name: getattr(look, name) for name in named}) for look in slow[:3]]


_PARTS = ("own", "core", "lock", "garbage")


def _told(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in parts.items())
