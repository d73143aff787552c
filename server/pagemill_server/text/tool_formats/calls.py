"""What the formats' parsers share: words with the white space at their ends, and arguments as they come.

A call begins for the outside when its name and the opening brace of its arguments have been read; from then on its arguments come
as the model writes them. What turns out to be no call before that is words, to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagemill_server.text import json_reading
from pagemill_server.text.cursor import Pulled, Reading
from pagemill_server.text.message import CallArguments, CallBegins, Words


class CallReader(Pulled):
    """A format's `message` is written with these."""

    keeps_space = True  # white space between words and a call is part of the words
    after_broken: Sequence[str] = ()  # markers up to which arguments run that aren't JSON

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self._said = False  # any words
        self._talking = False  # words came last, no call
        self._space = ""  # white space that may turn out to stand beside a call

    def say(self, text: str) -> None:
        """Words. White space between a call and the message's ends belongs to the format; between words it is kept."""
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._words(body.lstrip() if self._calls and not self._said else body)

    def finish_words(self) -> None:
        """Nothing comes any more."""
        self.hand_on()
        if self._space and not self._calls:
            self._words(self._space)

    def words_until(self, *markers: str) -> Reading[str]:
        """Says what comes before the first of the markers, which is then read but not taken; "" at the end."""
        self.sink = self.say
        marker = yield from self.cursor.until(markers)
        self.hand_on()
        self.sink = None
        self.cursor.at += len(marker)
        return marker

    def no_call(self, marker: str) -> None:
        """What was read after the marker is words, but for a marker that nothing follows: that one was cut off."""
        bare = self.cursor.at_end and not self.cursor.since(len(marker)).strip()
        if not bare:
            self.cursor.back(len(marker))
        text = self.cursor.take()
        if not bare:
            self.say(text)

    def begin(self, name: str) -> None:
        """A call, whose arguments come next."""
        self.cursor.take()
        if self.keeps_space and self._talking and self._space:
            self._words(self._space)
            self._space = ""
        if not self._said:
            self._space = ""
        self._talking = False
        self.events.append(CallBegins(self._calls, name))
        self._calls += 1

    def stream_arguments(self) -> Reading[bool]:
        """The object that comes, as it comes; false: it broke, and ran on to the next marker as the model wrote it."""
        self.sink = self.more_arguments
        is_object = yield from json_reading.value(self.cursor, mend=True)
        if not is_object:
            yield from self.cursor.until(self.after_broken)
        self.hand_on()
        self.sink = None
        return is_object

    def more_arguments(self, text: str) -> None:
        self.events.append(CallArguments(self._calls - 1, text))

    def _words(self, text: str) -> None:
        self.events.append(Words(text))
        self._said = self._talking = True
