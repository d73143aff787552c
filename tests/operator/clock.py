"""A clock that a test winds, for what takes one as an argument; the fixture `clock` is in conftest."""

from __future__ import annotations


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
