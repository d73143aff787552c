"""Scheduling policies that mean no good. None may cost a request, a block, a right answer or the end."""

import zlib
from collections.abc import Collection, Hashable, Reversible
from itertools import count

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.engine.sequence import Sequence


class Whimsical(Policy):
    """Another order each time it is asked, lanes at random, victims at random, admits when it likes. The same in each run."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._calls = count()

    def _dice(self, sides: int) -> int:
        return zlib.crc32(str(next(self._calls)).encode()) % sides

    def lane(self, sequence: Sequence) -> Hashable:
        return self._dice(3)

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (self._dice(10), float("inf"))[: self._dice(3)]

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        return (-self._dice(10),)

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        candidates = list(reversed(running))
        return candidates[self._dice(len(candidates))]

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        return self._dice(2) == 0


class Grudging(Policy):
    """Last come, first served; always the same one gives way, also to whoever is at the door; nobody may come in."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (-sequence.seq_id,)

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return list(reversed(running))[-1]

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        return False


class Displacing(Policy):
    """Whoever is at the door takes the place of the last admitted, and is displaced by the next."""

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return next(iter(reversed(running)))


class Lying(Policy):
    """Names victims that don't run."""

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return Sequence(10**9, AddRequest("nobody", (1,), SamplingParams(), 0.0), seed=0)


class Forgetful(Policy):
    """Says that no turn has fallen, while all of them rise and fall; lanes and groups without end."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._calls = count()

    def lane(self, sequence: Sequence) -> Hashable:
        return next(self._calls) % 7

    def group(self, sequence: Sequence) -> Hashable:
        return next(self._calls) % 3

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        call = next(self._calls)
        return (float(call), -float(call))[: call % 3]

    def fallen(self) -> Collection[Sequence] | None:
        return () if next(self._calls) % 5 else None


class Quarrelsome(Policy):
    """Its lanes raise when they are compared, and never have the same hash twice."""

    class Lane:
        _hashes = count()

        def __hash__(self) -> int:
            return next(self._hashes) // 5

        def __eq__(self, other: object) -> bool:
            raise ValueError("told to")

    def lane(self, sequence: Sequence) -> Hashable:
        return self.Lane()

    group = lane

    def fallen(self) -> Collection[Sequence] | None:
        return ()


class Raising(Policy):
    """Fails whatever it is asked, and tells nonsense where it doesn't."""

    def lane(self, sequence: Sequence) -> Hashable:
        return []  # type: ignore[return-value]

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (float("nan"),)

    def group(self, sequence: Sequence) -> Hashable:
        raise LookupError

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        raise KeyError(sequence.seq_id)

    def fallen(self) -> Collection[Sequence] | None:
        return [self]  # type: ignore[list-item]

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        raise ZeroDivisionError

    def admit(self, sequence: Sequence, needed_blocks: int, free_blocks: int) -> bool:
        raise SystemExit

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        raise RuntimeError

    def queued(self, sequence: Sequence) -> None:
        raise RuntimeError

    def left(self, sequence: Sequence) -> None:
        raise RuntimeError


NAMES = tuple(
    f"{__name__}:{policy.__name__}"
    for policy in (Whimsical, Grudging, Displacing, Lying, Forgetful, Quarrelsome, Raising)
)
