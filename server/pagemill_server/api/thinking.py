"""How many of an answer's tokens are reasoning: usage's `reasoning_tokens`. Pure.

Reads the text as `text/reasoning` does, but token by token, so that the count is the same streamed or not. Fed by `api/choice`.
"""

from __future__ import annotations

from pagemill_server.text.reasoning import ReasoningFormat, Stand


class ThinkingMeter:
    """Of one sequence. The markers count as reasoning, as far as the model wrote them."""

    def __init__(self, reasoning: ReasoningFormat, stand: Stand) -> None:
        self._begin, self._end = reasoning.begin, reasoning.end
        self._thinks = stand == "open" or (stand == "untouched" and reasoning.unmarked)
        self._text = ""  # what may still be a part of a marker
        self._tokens: int | None = None  # set once it is over

    def push(self, text: str, tokens: int) -> None:
        """The text that the newest token completes, and how many tokens there are with it."""
        if self._tokens is not None:
            return
        self._text += text
        if not self._thinks:
            self._await_begin()
        if self._thinks and self._end in self._text:
            self._tokens = tokens
        elif self._thinks:
            self._text = self._text[-len(self._end) :]

    def count(self, tokens: int) -> int:
        """Of so many tokens in all."""
        return (tokens if self._thinks else 0) if self._tokens is None else self._tokens

    def _await_begin(self) -> None:
        self._text = self._text.lstrip()
        if self._text.startswith(self._begin):
            self._thinks = True
        elif not self._begin.startswith(self._text):
            self._tokens = 0
