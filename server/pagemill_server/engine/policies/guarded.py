"""A policy that may be anybody's code, made safe to ask: what it raises or answers wrongly is answered by the base class instead.

Types only: whether a victim really runs, or a place is really free, is the scheduler's to see. Each hook's first failure is
logged with its traceback and the later ones are silent, for they come thousands of times a second. Made by `load`.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Reversible
from dataclasses import dataclass
from typing import TypeVar

from pagemill_server.engine.policies.interface import Policy
from pagemill_server.engine.sequence import Sequence

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PLAIN = (str, int, float, type(None))  # what these answer is their own


class WrongAnswer(TypeError):
    """A hook answered with what can't be used."""


class Guarded(Policy):
    """Asks `inner`, and trusts none of its answers."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self._told: set[str] = set()

    def lane(self, sequence: Sequence) -> Hashable:
        return self._ask(
            "lane", lambda: _hashable(self.inner.lane(sequence)), lambda: super(Guarded, self).lane(sequence)
        )

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return self._ask(
            "key", lambda: _comparable(self.inner.key(sequence)), lambda: super(Guarded, self).key(sequence)
        )

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        return self._ask("turn", lambda: _comparable(self.inner.turn(sequence)), lambda: self.key(sequence))

    def group(self, sequence: Sequence) -> Hashable:
        return self._ask("group", lambda: _hashable(self.inner.group(sequence)), lambda: self.lane(sequence))

    def fallen(self) -> Collection[Sequence] | None:
        return self._ask("fallen", lambda: _sequences_or_none(self.inner.fallen()), lambda: None)

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return self._ask(
            "victim",
            lambda: _sequence_or_none(self.inner.victim(running, newcomer)),
            lambda: super(Guarded, self).victim(running, newcomer),
        )

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        return self._ask(
            "admit",
            lambda: _yes_or_no(self.inner.admit(sequence, needed_blocks, free_blocks)),
            lambda: super(Guarded, self).admit(sequence, needed_blocks, free_blocks),
        )

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        self._ask("charge", lambda: self.inner.charge(sequence, prompt_tokens, output_tokens), _nothing)

    def queued(self, sequence: Sequence) -> None:
        self._ask("queued", lambda: self.inner.queued(sequence), _nothing)

    def admitted(self, sequence: Sequence) -> None:
        self._ask("admitted", lambda: self.inner.admitted(sequence), _nothing)

    def left(self, sequence: Sequence) -> None:
        self._ask("left", lambda: self.inner.left(sequence), _nothing)

    def _ask(self, hook: str, ask: Callable[[], T], instead: Callable[[], T]) -> T:
        try:
            return ask()
        except (Exception, SystemExit):
            if hook not in self._told:
                self._told.add(hook)
                logger.exception(
                    "the scheduling policy %s failed in `%s`; whenever it does, first come, first served decides "
                    "(this is said once)",
                    type(self.inner).__qualname__,
                    hook,
                )
            return instead()


@dataclass(frozen=True, slots=True, eq=False)
class _Name:
    """What can be a key in a dict whatever it does when it is asked again."""

    value: Hashable
    hashed: int

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        with contextlib.suppress(Exception, SystemExit):
            return isinstance(other, _Name) and bool(self.value == other.value)
        return False


def _hashable(lane: Hashable) -> Hashable:
    return lane if type(lane) in _PLAIN else _Name(lane, hash(lane))


def _comparable(key: object) -> tuple[float, ...]:
    """Plain floats, which always have an order among themselves."""
    if not isinstance(key, tuple):
        raise WrongAnswer(f"`key` and `turn` must be tuples of numbers, not {key!r}")
    numbers = tuple(map(float, key))
    if any(map(math.isnan, numbers)):
        raise WrongAnswer(f"`key` or `turn` has a NaN, which has no place in an order: {key!r}")
    return numbers


def _sequence_or_none(victim: object) -> Sequence | None:
    if victim is not None and not isinstance(victim, Sequence):
        raise WrongAnswer(f"`victim` must be one of the running sequences or None, not {victim!r}")
    return victim


def _sequences_or_none(fallen: object) -> tuple[Sequence, ...] | None:
    if fallen is None:
        return None
    named = tuple(fallen) if isinstance(fallen, Iterable) else (fallen,)
    if not all(isinstance(sequence, Sequence) for sequence in named):
        raise WrongAnswer(f"`fallen` must be sequences or None, not {fallen!r}")
    return named


def _yes_or_no(answer: object) -> bool:
    if not isinstance(answer, bool):
        raise WrongAnswer(f"`admit` must be True or False, not {answer!r}")
    return answer


def _nothing() -> None:
    """What the base class does with a notice."""
