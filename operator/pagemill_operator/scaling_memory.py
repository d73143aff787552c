"""What scaling remembers between looks, by deployment, in this process only: a restart or another leader begins anew, and safely.

Owned by `__main__` and `up`, handed to each reconcile. `record` is told of every decision; the metrics count them.
"""

from __future__ import annotations

from collections.abc import Callable

from pagemill_operator.autoscale import Decision
from pagemill_operator.cluster.interface import Key
from pagemill_operator.scaling import Memory, Scaled


class Memories:
    """One of each deployment that we decide for."""

    def __init__(self, record: Callable[[Key, Decision | None], None] = lambda key, decision: None) -> None:
        self._by_key: dict[Key, Memory] = {}
        self._record = record

    def of(self, key: Key) -> Memory | None:
        return self._by_key.get(key)

    def keep(self, key: Key, scaled: Scaled) -> None:
        """Of this look; nothing where we don't decide."""
        if scaled.memory is None:
            self.forget(key)
            return
        self._by_key[key] = scaled.memory
        self._record(key, scaled.decision)

    def forget(self, key: Key) -> None:
        """The deployment is gone, or somebody else decides."""
        if self._by_key.pop(key, None) is not None:
            self._record(key, None)
