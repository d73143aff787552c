"""Finds stop strings in text that arrives in pieces, and holds back what may become one. Pure; knows no tokens.

The stop string that completes first wins; of those that complete at the same character, the one that began first. The stop
string itself is never part of the text.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """One sequence's search. `push` gives what may be shown, `matched` says that a stop string was found."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string is refused at the door"
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.matched = False

    def push(self, text: str, armed: bool = True) -> str:
        """The text that is now certain to come before any stop string. Not armed, none that completes within `text` counts."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        end, start = min(self._completions(buffer), default=(0, -1)) if armed else (0, -1)
        if end:
            self.matched = True
            self._held = ""
            return buffer[:start]
        keep = self._beginning_of_a_stop(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """What was held back, when the sequence ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _completions(self, buffer: str) -> list[tuple[int, int]]:
        """(end, start) of the first occurrence of each stop string that ends in what is new."""
        known = len(self._held)
        found = ((buffer.find(stop, max(0, known - len(stop) + 1)), len(stop)) for stop in self._stops)
        return [(start + length, start) for start, length in found if start >= 0]

    def _beginning_of_a_stop(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        for size in range(min(self._longest - 1, len(buffer)), 0, -1):
            tail = buffer[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
