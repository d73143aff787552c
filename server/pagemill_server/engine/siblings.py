"""The sequences of a request with n > 1: they share the prompt's blocks, so one computes the prompt and the others wait for it.

The one that computes it, the leader, queues like any other. The others are held back, and hold nobody up, until the leader's plan
reaches the prompt's end; then they queue and are admitted onto its blocks. A leader that is preempted before stays the leader; when
it leaves, the next takes its place. Used by `roster` and `admission`; knows no blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pagemill_server.engine.sequence import Sequence

Members = Mapping[int, Sequence]  # of one request, by index: all that haven't left, in order


class Siblings:
    """Who is held back behind whom. A request of one sequence never has anybody here."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, Sequence]] = {}  # by request_id; no entry where nobody is held back
        self.num_held = 0

    def hold(self, sequence: Sequence) -> None:
        self._held.setdefault(sequence.request.request_id, {})[sequence.index] = sequence
        self.num_held += 1

    def let_go(self, sequence: Sequence) -> bool:
        """Forget one that is held back; False, and nothing done, for one that isn't."""
        held = self._held.get(sequence.request.request_id, {})
        if held.pop(sequence.index, None) is None:
            return False
        self.num_held -= 1
        if not held:
            del self._held[sequence.request.request_id]
        return True

    def heir(self, sequence: Sequence) -> Sequence | None:
        """One that wasn't held back leaves: who takes its place as the leader, and queues now."""
        # While anybody is held back, the one that isn't is the leader.
        held = self._held.get(sequence.request.request_id)
        if held is None:
            return None
        heir = next(iter(held.values()))
        self.let_go(heir)
        return heir

    def due(self, running: Iterable[Sequence], has_prompt: Callable[[Sequence], bool]) -> list[Sequence]:
        """Those whose leader has the prompt in its blocks, or will have it with the step that is being planned: they queue now.

        Only who runs is asked, for many more may wait with others behind them.
        """
        due: list[Sequence] = []
        for leader in running:
            request_id = leader.request.request_id
            if request_id in self._held and has_prompt(leader):
                due += self._held.pop(request_id).values()
        self.num_held -= len(due)
        return due


def donor(sequence: Sequence, members: Members, has_prompt: Callable[[Sequence], bool]) -> Sequence | None:
    """Another of the request that has the prompt in its blocks, the first; None where there is none."""
    return next((other for other in members.values() if other is not sequence and has_prompt(other)), None)
