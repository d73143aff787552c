"""One sequence's text through the turn's parser, each token with the words that it is in.

Log-probabilities stand beside a message's words: tokens of markers, thoughts and calls have no place. Where they are asked for, the
parser is given one character at a time, so that what goes with what doesn't depend on how the text was cut. Pure; used by `reply`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from pagemill_server.api.choice import Piece, ShownToken
from pagemill_server.text.message import CallBegins, MessageEvent, MessageParser, Words

Said = tuple[
    MessageEvent, list[ShownToken]
]  # and the tokens whose words it is; of words without text, those that came late


class SaidWords:
    """`parser` None: all of the text is words."""

    def __init__(self, parser: MessageParser | None, *, logprobs: bool) -> None:
        self._parser = parser
        self._logprobs = logprobs
        self._known = 0  # characters of which it is known whether they are words
        self._text = ""  # read, after those
        self._words: deque[tuple[int, int]] = deque()  # from where to where words are whose tokens may still come
        self._tokens: deque[ShownToken] = deque()

    def push(self, piece: Piece) -> list[Said]:
        self._tokens += piece.tokens
        if self._parser is None:
            return self._all(piece)
        if self._logprobs:
            return self._by_character(self._parser, piece)
        return [(event, []) for event in self._events(self._parser, piece, [piece.text])]

    def _all(self, piece: Piece) -> list[Said]:
        """A token without text waits for words to stand beside."""
        if not piece.text and piece.finish_reason is None:
            return []
        tokens, self._tokens = list(self._tokens), deque()
        return [(Words(piece.text), tokens)]

    def _by_character(self, parser: MessageParser, piece: Piece) -> list[Said]:
        made: list[Said] = []
        for event in self._events(parser, piece, piece.text):
            self._learn(event)
            if isinstance(event, Words):
                made.append((event, self._due()))
            else:
                made += [(Words(""), self._due()), (event, [])]
        return [*made, (Words(""), self._due())]

    def _events(self, parser: MessageParser, piece: Piece, parts: Iterable[str]) -> Iterator[MessageEvent]:
        for part in parts:
            self._text += part if self._logprobs else ""
            yield from parser.push(part)
        if piece.finish_reason is not None:
            yield from parser.finish()

    def _learn(self, event: MessageEvent) -> None:
        """An event says what the newest text is that looks like it; what was read before that was a marker."""
        length = len(self._text)
        if isinstance(event, CallBegins):
            start = end = length
        else:
            start = self._text.rfind(event.text)
            start, end = (start, start + len(event.text)) if start >= 0 else (0, length)
        if isinstance(event, Words):
            self._words.append((self._known + start, self._known + end))
        self._known += end
        self._text = self._text[end:]

    def _due(self) -> list[ShownToken]:
        """The tokens of words that are out; those of anything else are dropped."""
        due = []
        while self._tokens and self._tokens[0].offset < self._known:
            token = self._tokens.popleft()
            while self._words and self._words[0][1] <= token.offset:
                self._words.popleft()
            if self._words and self._words[0][0] <= token.offset:
                due.append(token)
        return due
