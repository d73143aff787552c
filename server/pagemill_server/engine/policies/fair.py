"""Fair between clients: the virtual token counter of Sheng et al. (OSDI 2024, arXiv 2401.00588, algorithms 2 and 4).

A client is served `input_weight` for each prompt token that is computed for it and `output_weight` for each token that it gets,
divided by its weight; the waiting client that was served least goes first. Two clients that both wait are never further apart
than 2 x max(input_weight x longest prompt, output_weight x tokens that the cache holds), whatever they send, and nothing idles
while somebody waits. A client named `key/user` is `key` to the others, and shares fairly among its users.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Reversible

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies.counters import Counters
from pagemill_server.engine.policies.interface import Policy
from pagemill_server.engine.sequence import Sequence


class Fair(Policy):
    """The last admitted of the client that was served most gives way."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._weights = dict(config.weights)
        self.clients = Counters(self._weights)
        self._users: dict[str, Counters] = {}  # of each client that is here
        self._waiting: dict[int, bool] = {}  # whether it waits, of each sequence that is here; by seq_id
        self._owing: dict[int, int] = {}  # prompt tokens charged in advance, since its admission; by seq_id
        self._repaid: dict[int, Sequence] = {}  # since the queue last asked; by seq_id

    def lane(self, sequence: Sequence) -> Hashable:
        return sequence.request.client

    def group(self, sequence: Sequence) -> Hashable:
        return _names(sequence)[0]

    def turn(self, sequence: Sequence) -> tuple[float, ...]:
        return (*self._served(sequence), sequence.request.arrival)

    def fallen(self) -> Collection[Sequence]:
        repaid, self._repaid = self._repaid, {}
        return repaid.values()

    def victim(self, running: Reversible[Sequence], newcomer: Sequence | None) -> Sequence | None:
        return max(reversed(running), key=self._served) if newcomer is None else None

    def charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        in_advance = min(prompt_tokens, self._owing.get(sequence.seq_id, 0))
        self._owing[sequence.seq_id] = self._owing.get(sequence.seq_id, 0) - in_advance
        self._charge(sequence, prompt_tokens - in_advance, output_tokens)

    def queued(self, sequence: Sequence) -> None:
        client, user = _names(sequence)
        levels = ((self.clients, client), (self._users.setdefault(client, Counters(self._weights)), user))
        for counters, name in levels:
            if sequence.seq_id not in self._waiting:
                counters.come(name)
            counters.wait(name)
        self._waiting[sequence.seq_id] = True
        self._repay(sequence)

    def admitted(self, sequence: Sequence) -> None:
        """The prompt is charged now and not as it is computed, or a client would get every free place of a step."""
        self._runs(sequence)
        if not sequence.num_output_tokens:
            self._owing[sequence.seq_id] = sequence.num_prompt_tokens - sequence.num_computed_tokens
            self._charge(sequence, self._owing[sequence.seq_id], 0)

    def left(self, sequence: Sequence) -> None:
        if sequence.seq_id not in self._waiting:
            return
        self._repay(sequence)
        if self._waiting[sequence.seq_id]:
            self._runs(sequence)
        del self._waiting[sequence.seq_id]
        client, user = _names(sequence)
        self._users[client].go(user)
        self.clients.go(client)
        if self._users[client].idle:
            del self._users[client]

    def _served(self, sequence: Sequence) -> tuple[float, float]:
        client, user = _names(sequence)
        return self.clients[client], self._users[client][user]

    def _charge(self, sequence: Sequence, prompt_tokens: int, output_tokens: int) -> None:
        client, user = _names(sequence)
        cost = self.config.input_weight * prompt_tokens + self.config.output_weight * output_tokens
        self.clients.charge(client, cost)
        self._users[client].charge(user, cost)

    def _repay(self, sequence: Sequence) -> None:
        """It runs no more, and what it was charged for in advance was not computed."""
        if owed := self._owing.pop(sequence.seq_id, 0):
            self._charge(sequence, -owed, 0)
            self._repaid[sequence.seq_id] = sequence

    def _runs(self, sequence: Sequence) -> None:
        client, user = _names(sequence)
        self.clients.run(client)
        self._users[client].run(user)
        self._waiting[sequence.seq_id] = False


def _names(sequence: Sequence) -> tuple[str, str]:
    """The client, and the whole name, which tells its users apart."""
    whole = sequence.request.client
    return whole.partition("/")[0], whole
