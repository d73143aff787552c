"""What a scaling decision looks back on: what was asked for within the window, what was added and removed within a minute.

Pure and bounded: of the asks only those are kept that can still be the largest of a window. Doesn't know what asks.
Used by `autoscale`; kept between looks by `scaling`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

MINUTE = timedelta(minutes=1)
LONGEST_GAP = timedelta(minutes=2)  # between two looks; what lay between longer ones nobody knows


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked for at a moment: the stabilisation window looks back on these."""

    time: datetime
    desired: int


@dataclass(frozen=True, slots=True)
class Change:
    """Replicas added (or, negative, removed) at a moment: the rates look back on these."""

    time: datetime
    by: int


@dataclass(frozen=True, slots=True)
class History:
    """What a decision looks back on. A new one has seen nothing, so an operator that has just started never scales down at once."""

    current: int  # replicas that are wanted now
    since: datetime  # since when asks have been kept without a gap
    asks: tuple[
        Ask, ...
    ] = ()  # oldest first, each larger than the next: the others can't be the largest of a window any more
    changes: tuple[Change, ...] = ()  # of the last minute
    came: datetime | None = None  # when replicas were last on their way; None: not seen

    def added(self, now: datetime) -> int:
        """Replicas added within the last minute."""
        return sum(max(0, change.by) for change in _recent(self.changes, now))

    def removed(self, now: datetime) -> int:
        """Replicas removed within the last minute."""
        return sum(max(0, -change.by) for change in _recent(self.changes, now))

    def largest(self, window: timedelta, now: datetime) -> Ask | None:
        """The largest ask of the window, the last of equals."""
        return max((ask for ask in self.asks if ask.time >= now - window), key=_size_then_time, default=None)

    def seen(self, now: datetime) -> timedelta:
        """For how long asks have been kept without a gap."""
        gap = bool(self.asks) and now - self.asks[-1].time > LONGEST_GAP
        return timedelta(0) if gap else now - self.since

    def just_came(self, now: datetime) -> bool:
        """Replicas were on their way within the last minute: what is measured still tells of the time before."""
        return self.came is not None and now - self.came < MINUTE

    def then(self, asked: int, current: int, coming: bool, window: timedelta, now: datetime) -> History:
        """The history after a look that asked for `asked`, and after which `current` are wanted."""
        kept = [ask for ask in self.asks if ask.time >= now - window and ask.desired > asked]
        changes = _recent(self.changes, now)
        if current != self.current:
            changes = (*changes, Change(now, current - self.current))
        # What is older than the window is forgotten: a window that a new spec makes longer has to fill first.
        since = now - min(self.seen(now), window)
        came = now if coming else self.came
        return replace(self, current=current, since=since, asks=(*kept, Ask(now, asked)), changes=changes, came=came)


def _recent(changes: tuple[Change, ...], now: datetime) -> tuple[Change, ...]:
    return tuple(change for change in changes if now - change.time < MINUTE)


def _size_then_time(ask: Ask) -> tuple[int, datetime]:
    return ask.desired, ask.time
