"""Every sequence that isn't finished, and where it stands: held back, waiting, running, or running and being fetched.

The moves between these places are here, each with what it means for blocks, policy and totals. Who moves is decided by `scheduler`
and `admission`; what finished leaves through `remove`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagemill_server.engine.errors import KVCacheCorrupted
from pagemill_server.engine.kv_cache import Admission, KVCache
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.siblings import Siblings
from pagemill_server.engine.totals import Totals
from pagemill_server.engine.waiting import WaitingQueue


class Roster:
    """The engine's thread only."""

    def __init__(self, kv_cache: KVCache, policy: Policy) -> None:
        self.policy = policy
        self.requests: dict[str, dict[int, Sequence]] = {}  # by request_id, then by index
        self.waiting = WaitingQueue(policy)
        self.siblings = Siblings()
        self.running: dict[int, Sequence] = {}  # by seq_id, in order of admission
        self.fetching: dict[int, int] = {}  # of the running, whose blocks are on their way: seq_id to ticket
        self.in_flight: set[int] = set()  # tickets that weren't reported, also of sequences that are gone
        self.totals = Totals()
        self._kv_cache = kv_cache

    @property
    def has_work(self) -> bool:
        return bool(self.requests or self.in_flight)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + self.siblings.num_held

    def active(self) -> list[Sequence]:
        """The running that can compute: all but those being fetched, in order of admission."""
        if not self.fetching:
            return list(self.running.values())
        return [sequence for seq_id, sequence in self.running.items() if seq_id not in self.fetching]

    def add(self, sequence: Sequence) -> None:
        """Those of one request in the order of their index."""
        members = self.requests.setdefault(sequence.request.request_id, {})
        members[sequence.index] = sequence
        self.totals.num_added += 1
        if len(members) == 1:
            self.waiting.push(sequence)
        else:
            self.siblings.hold(sequence)

    def start(self, sequence: Sequence, admission: Admission, now: float) -> None:
        """It has its blocks, and runs from now on."""
        self.waiting.remove(sequence)
        self.running[sequence.seq_id] = sequence
        sequence.num_computed_tokens = admission.cached_tokens
        sequence.num_tokens_when_admitted = sequence.num_tokens
        sequence.blocked_since = None
        if admission.fetch is not None:
            self.fetching[sequence.seq_id] = admission.fetch.ticket
            self.in_flight.add(admission.fetch.ticket)
        if sequence.first_scheduled is None:
            self._start_first_time(sequence, admission, now)
        self.policy.admitted(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Take the blocks of a running sequence away and queue it again as new; its tokens so far are kept."""
        del self.running[sequence.seq_id]
        self._kv_cache.release(sequence, returns=True)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.totals.num_preemptions += 1
        self.waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that finished, failed or was aborted, and free its blocks. A second call does nothing."""
        members = self.requests.get(sequence.request.request_id, {})
        if members.get(sequence.index) is not sequence:
            return
        del members[sequence.index]
        if not members:
            del self.requests[sequence.request.request_id]
        self._kv_cache.release(sequence)
        if self.siblings.let_go(sequence):
            return  # it never queued: the policy has not heard of it
        if self.running.pop(sequence.seq_id, None) is None:
            self.waiting.remove(sequence)
        self.fetching.pop(sequence.seq_id, None)
        self.policy.left(sequence)
        if (heir := self.siblings.heir(sequence)) is not None:
            self.waiting.push(heir)

    def fetched(self, tickets: Iterable[int]) -> None:
        """Fetches are done. What was fetched for sequences that are gone goes back to the pool."""
        self.in_flight.difference_update(tickets)
        for seq_id in self._kv_cache.fetched(tickets):
            del self.fetching[seq_id]

    def follow(self, policy: Policy) -> None:
        """Another policy: it hears of those that run, and the waiting are queued anew in its order."""
        before, self.policy = self.waiting, policy
        self.waiting = WaitingQueue(policy)
        for sequence in self.running.values():
            policy.queued(sequence)
            policy.admitted(sequence)
        for sequence in sorted(before.members(), key=lambda sequence: sequence.seq_id):
            self.waiting.push(sequence)

    def check_integrity(self) -> None:
        """The pool adds up, and exactly the running sequences hold blocks, enough for what they computed. For tests and idle
        moments. Raises KVCacheCorrupted."""
        self._kv_cache.check_integrity()
        if self._kv_cache.holders != self.running.keys():
            raise KVCacheCorrupted(f"{sorted(self._kv_cache.holders)} hold blocks, {sorted(self.running)} run")
        for sequence in self.running.values():
            self._kv_cache.table(sequence, sequence.num_computed_tokens)

    def _start_first_time(self, sequence: Sequence, admission: Admission, now: float) -> None:
        sequence.first_scheduled = now
        sequence.num_cached_tokens = sequence.num_charged_tokens = admission.cached_tokens
        self.totals.prefix_cache_queries += sequence.num_prompt_tokens
        self.totals.prefix_cache_hits += admission.cached_tokens
        if admission.fetch is not None:
            self.totals.host_hits += len(admission.fetch.copies) * self._kv_cache.block_size
