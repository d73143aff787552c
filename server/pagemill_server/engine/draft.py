"""A step in the making: how many tokens of whom, under one budget. Made anew for each step by `scheduler`, added to by `admission`.

Each sequence in it computes one token at least. What is left over goes to those that have more to compute, in the policy's order;
a newcomer that goes before them takes it from them.
"""

from __future__ import annotations

from collections.abc import Callable

from pagemill_server.engine.schedule import Fetch
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.waiting import Place

Turn = Callable[[Sequence], Place]


class Draft:
    """`left` tokens of the budget are nobody's yet."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.tokens: dict[int, int] = {}  # to compute, by seq_id, in the order of the step
        self.fetches: list[Fetch] = []  # that begin with the step
        self.withdrawn: set[int] = set()  # seq_ids
        self._catching_up: list[Sequence] = []  # who has more than one token to compute, in the order of getting them
        self._promised: set[int] = set()  # seq_ids whose tokens others count on: they are not taken back

    def share(self, active: list[Sequence], turn: Turn) -> None:
        """A token for each of them (there are no more than the budget has), the rest to those that have more to compute."""
        self.tokens = dict.fromkeys([sequence.seq_id for sequence in active], 1)
        self.left -= len(active)
        self._catching_up = [s for s in active if len(s.token_ids) - s.num_computed_tokens > 1]
        if len(self._catching_up) > 1:
            self._catching_up.sort(key=turn)
        self.give_out_rest()

    def add(self, sequence: Sequence) -> None:
        """A newcomer takes what it can; something must be left."""
        assert self.left > 0, sequence.seq_id
        self.tokens[sequence.seq_id] = 0
        self._give(sequence)
        self.give_out_rest()
        if _missing(sequence) > 1:
            self._catching_up.append(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """It is preempted before it has run, and is not for this step any more."""
        self.left += self.tokens.pop(sequence.seq_id)
        self.withdrawn.add(sequence.seq_id)
        self._catching_up = [other for other in self._catching_up if other is not sequence]

    def make_room(self, newcomer: Sequence, turn: Turn) -> None:
        """Take back what those who would go after the newcomer have above one token, where the newcomer could use it."""
        if not self._catching_up or _missing(newcomer) <= self.left:
            return
        place = turn(newcomer)
        for sequence in self._catching_up:
            spare = self.tokens[sequence.seq_id] - 1
            if spare and sequence.seq_id not in self._promised and turn(sequence) > place:
                self.tokens[sequence.seq_id] = 1
                self.left += spare

    def promise_prompt(self, sequence: Sequence) -> bool:
        """Whether the sequence has its whole prompt in its blocks once the step is computed. If so, that stays so."""
        tokens = self.tokens.get(sequence.seq_id)
        if tokens is None or sequence.num_computed_tokens + tokens < sequence.num_prompt_tokens:
            return False
        self._promised.add(sequence.seq_id)
        return True

    def give_out_rest(self) -> None:
        for sequence in self._catching_up:
            if not self.left:
                break
            self._give(sequence)

    def _give(self, sequence: Sequence) -> None:
        more = min(self.left, _missing(sequence) - self.tokens[sequence.seq_id])
        self.tokens[sequence.seq_id] += more
        self.left -= more


def _missing(sequence: Sequence) -> int:
    return sequence.num_tokens - sequence.num_computed_tokens
