"""A progress bar on a terminal's stderr; where nobody looks, nothing is written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_WIDTH = 30  # characters of the bar itself
_INTERVAL = 0.1  # seconds between two drawings


class Progress:
    """`done` counts prompts, `tokens` what was generated or embedded; drawn a few times a second, and at the end."""

    def __init__(
        self,
        what: str,
        total: int,
        shown: bool,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total = what, total
        self._stream = stream or sys.stderr
        self._shown = shown and total > 0 and self._stream.isatty()
        self._clock, self._began, self._drawn = clock, clock(), float("-inf")
        self.done = self.tokens = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write(f"{self._line()}\n")

    def advance(self, done: int, tokens: int) -> None:
        self.done += done
        self.tokens += tokens
        if self._shown and (now := self._clock()) - self._drawn >= _INTERVAL:
            self._drawn = now
            self._stream.write(self._line())
            self._stream.flush()

    def _line(self) -> str:
        full = _WIDTH * self.done // self._total
        rate = self.tokens / max(self._clock() - self._began, 1e-9)
        bar = "█" * full + " " * (_WIDTH - full)
        return f"\r{self._what}: |{bar}| {self.done}/{self._total}, {rate:.1f} tokens/s "
