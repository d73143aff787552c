"""A grammar tried out before anybody is promised an answer of its form: its first tokens, along two ways.

What breaks a limit of the parser there would end every answer with an error, and what takes long for a token would hold up all
that run beside it: both are refused. Called by `compiler`, in the text threads. Raises InvalidGrammar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from llguidance import LLMatcher

from pagemill_server.text.grammar.errors import InvalidGrammar

TOKENS = 8
MASK_SECONDS = 0.05  # of computing; a usual one takes a hundredth of a millisecond to ten


def try_out(made: LLMatcher, ends: Sequence[int], check: Callable[[LLMatcher], None]) -> None:
    """`check` raises for a matcher that has an error."""
    for pick in (_lowest, _highest):
        matcher = made.deep_copy()
        for _ in range(TOKENS):
            began = time.thread_time()
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            check(matcher)
            if time.thread_time() - began > MASK_SECONDS:
                raise InvalidGrammar(
                    "It takes too long to say what may come next: it leaves too many ways open at once."
                )
            for end in ends:
                allowed &= ~(1 << end)
            if not allowed:
                break
            matcher.consume_token(pick(allowed))


def _lowest(ids: int) -> int:
    return (ids & -ids).bit_length() - 1


def _highest(ids: int) -> int:
    return ids.bit_length() - 1
