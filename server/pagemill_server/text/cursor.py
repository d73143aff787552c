"""Text that arrives in pieces, read as if all of it were there: what the parsers of generated text are written on.

A parser is a generator over one `Cursor`; it yields when it needs more than has come. `Pulled` drives it and is the parser that
others see. What was read but not taken can still turn out to be something else (`back`). Knows no format.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from pagemill_server.text.message import MessageEvent

T = TypeVar("T")
Reading = Generator[None, None, T]  # gives way when it needs more text; in the end, T


class Cursor:
    """`at` is where reading stands. Places are relative to the last `take`, so that they outlive a wait."""

    def __init__(self) -> None:
        self._text = ""
        self.at = 0
        self.ended = False

    def feed(self, text: str) -> None:
        self._text += text

    def take(self) -> str:
        """What was read since the last time; it is gone."""
        taken, self._text = self._text[: self.at], self._text[self.at :]
        self.at = 0
        return taken

    def back(self, to: int = 0) -> None:
        self.at = to

    def since(self, place: int) -> str:
        """What was read from `place` on."""
        return self._text[place : self.at]

    @property
    def rest(self) -> str:
        """What has come and wasn't read."""
        return self._text[self.at :]

    @property
    def at_end(self) -> bool:
        return self.ended and self.at == len(self._text)

    def put(self, text: str) -> None:
        """In place of the next character; counts as read."""
        self._text = self._text[: self.at] + text + self._text[self.at + 1 :]
        self.at += len(text)

    def peek(self) -> Reading[str]:
        """The next character; "" at the end."""
        while self.at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self.at]

    def skip(self, pattern: re.Pattern[str]) -> Reading[None]:
        """As many characters as match; `pattern` is a class of characters, repeated."""
        while True:
            match = pattern.match(self._text, self.at)
            assert match is not None, "it may match nothing, but always does"
            self.at = match.end()
            if self.at < len(self._text) or self.ended:
                return
            yield

    def word(self, expected: str) -> Reading[bool]:
        """Whether `expected` comes next, which is then read. Waits no longer than it may still come."""
        while True:
            found = self._text[self.at : self.at + len(expected)]
            if found == expected:
                self.at += len(expected)
                return True
            if not expected.startswith(found) or self.ended:
                return False
            yield

    def until(self, markers: Sequence[str]) -> Reading[str]:
        """Reads up to the first of the markers that comes and says which; "" at the end. The marker itself stays unread."""
        while True:
            rest = self.rest
            places = [(place, marker) for marker in markers if (place := rest.find(marker)) >= 0]
            if places:
                place, marker = min(places)
                self.at += place
                return marker
            self.at += len(rest) - (0 if self.ended else _beginning(rest, markers))
            if self.ended:
                return ""
            yield


def _beginning(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a marker."""
    longest = max(map(len, markers), default=0) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(m.startswith(text[-size:]) for m in markers)), 0)


class Pulled(ABC):
    """A `MessageParser` whose `message` reads the whole text from top to bottom and puts what it finds in `events`."""

    def __init__(self) -> None:
        self.cursor = Cursor()
        self.events: list[MessageEvent] = []
        self.sink: Callable[[str], None] | None = None  # gets what is read as it comes; None: it is held
        self._reading = self.message()

    @abstractmethod
    def message(self) -> Reading[None]: ...

    def hand_on(self) -> None:
        """What was read goes to the sink."""
        if self.sink is not None and (text := self.cursor.take()):
            self.sink(text)

    def push(self, text: str) -> list[MessageEvent]:
        self.cursor.feed(text)
        return self._go_on()

    def finish(self) -> list[MessageEvent]:
        self.cursor.ended = True
        return self._go_on()

    def _go_on(self) -> list[MessageEvent]:
        next(self._reading, None)
        self.hand_on()
        events, self.events = self.events, []
        return events
