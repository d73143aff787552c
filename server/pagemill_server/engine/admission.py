"""Who of the queue comes in: the head if it finds a place and its blocks, by displacing others if the policy says so; or, for a
bounded time, one of the next that are small enough.

A head is blocked when its blocks aren't free. For `bypass_seconds` from then on, those behind it may pass it; after that nobody
comes in before it does, so it waits no longer than the running take to end. While others run, an admission leaves a watermark of
the blocks free, so that they can grow without a preemption at once. Called by `scheduler` once a step.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.draft import Draft
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.prefix import PrefixMatch
from pagemill_server.engine.roster import Roster
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.siblings import donor
from pagemill_server.engine.tier_costs import TierCosts

BYPASS_WINDOW = 8  # how many behind a blocked head are looked at


class Verdict(Enum):
    STARTED = auto()
    NO_BLOCKS = auto()
    NOT_NOW = auto()  # the policy says so, or the step's budget is used up


class Admissions:
    """`config` may be replaced between two steps."""

    def __init__(self, roster: Roster, kv_cache: KVCache, costs: TierCosts, config: SchedulerConfig) -> None:
        self.config = config
        self._roster = roster
        self._kv_cache = kv_cache
        self._costs = costs

    def fill(self, draft: Draft, now: float) -> None:
        """Start as many as fit, one after another; what they compute goes into the draft."""
        self._queue_siblings(draft)
        while self._start_one(draft, now):
            self._queue_siblings(draft)

    def _queue_siblings(self, draft: Draft) -> None:
        siblings = self._roster.siblings
        if siblings.num_held:
            for sequence in siblings.due(self._roster.running.values(), draft.promise_prompt):
                self._roster.waiting.push(sequence)

    def _start_one(self, draft: Draft, now: float) -> bool:
        head = self._roster.waiting.head()
        if head is None or head.seq_id in draft.withdrawn:
            return False
        displaced = self._missing_places() > 0
        if displaced and not self._displace_for(head, draft):
            return False
        draft.make_room(head, self._roster.waiting.turn)
        verdict = self._try(head, draft, now)
        if verdict is Verdict.NO_BLOCKS and not displaced and self._displace_for(head, draft):
            displaced = True
            verdict = self._try(head, draft, now)
        if verdict is Verdict.NO_BLOCKS and not displaced:
            return self._pass(head, draft, now)
        return verdict is Verdict.STARTED

    def _pass(self, head: Sequence, draft: Draft, now: float) -> bool:
        """Start one of those behind a blocked head, while they may pass it."""
        if head.blocked_since is None:
            head.blocked_since = now
        if now - head.blocked_since >= self.config.bypass_seconds:
            return False
        draft.give_out_rest()
        behind = self._roster.waiting.first(1 + BYPASS_WINDOW)[1:]
        return any(self._try(sequence, draft, now) is Verdict.STARTED for sequence in behind)

    def _try(self, sequence: Sequence, draft: Draft, now: float) -> Verdict:
        if not draft.left and not self._kv_cache.num_host_blocks:
            return Verdict.NOT_NOW
        match = self._match(sequence, draft)
        if self._missing_blocks(sequence, match) > 0:
            return Verdict.NO_BLOCKS
        if not (draft.left or match.host) or not self._allowed(sequence, match):
            return Verdict.NOT_NOW
        admission = self._kv_cache.admit(sequence, sequence.num_tokens_to_hold, match)
        assert admission is not None, f"{sequence.seq_id} fits, and gets no blocks"
        self._roster.start(sequence, admission, now)
        if admission.fetch is None:
            draft.add(sequence)
        else:
            draft.fetches.append(admission.fetch)
        return Verdict.STARTED

    def _match(self, sequence: Sequence, draft: Draft) -> PrefixMatch:
        """What needn't be computed: by the prefix cache, or in the blocks of another of its request."""
        match = self._kv_cache.match(sequence)
        if sequence.request.sampling.n > 1:
            members = self._roster.requests[sequence.request.request_id]
            leader = donor(sequence, members, draft.promise_prompt)
            if leader is not None:
                shared = self._kv_cache.shared(leader, sequence)
                match = max(shared, match, key=lambda match: len(match.device))
        if match.host and not self._fetch_pays(match):
            match = replace(match, host=())
        return match

    def _fetch_pays(self, match: PrefixMatch) -> bool:
        size = self._kv_cache.block_size
        return self._costs.fetch_pays(len(match.host), len(match.host) * size, len(match.device) * size)

    def _allowed(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """The policy's word, which counts as long as somebody runs."""
        if not self._roster.running:
            return True
        needed = self._kv_cache.blocks_for(sequence.num_tokens_to_hold) - len(match.device)
        return self._roster.policy.admit(sequence, needed, self._kv_cache.available)

    def _missing_places(self) -> int:
        return len(self._roster.running) + 1 - self.config.places

    def _missing_blocks(self, sequence: Sequence, match: PrefixMatch) -> int:
        cache = self._kv_cache
        free = int(self.config.watermark * cache.num_blocks) if self._roster.running else 0
        return cache.blocks_to_admit(sequence.num_tokens_to_hold, match) + free - cache.available

    def _displace_for(self, newcomer: Sequence, draft: Draft) -> bool:
        """Preempt whom the policy names until the newcomer has a place and its blocks; nobody, where that can't be reached.

        Only who has had a token since it was admitted gives way: so each displacement is paid for with progress, whatever the
        policy answers.
        """
        eligible = [s for s in self._roster.active() if s.num_tokens > s.num_tokens_when_admitted]
        victims: list[Sequence] = []
        places, blocks = self._missing_places(), 1
        while eligible and (places > 0 or blocks > 0):
            victim = self._roster.policy.victim(eligible, newcomer)
            if victim is None or not any(victim is sequence for sequence in eligible):
                return False
            if not victims:
                blocks = self._missing_blocks(newcomer, self._match(newcomer, draft))
            eligible.remove(victim)
            victims.append(victim)
            places -= 1
            blocks -= self._kv_cache.blocks_for(victim.num_tokens)
        if places > 0 or blocks > 0:
            return False
        for victim in victims:
            draft.withdraw(victim)
            self._roster.preempt(victim)
        return True
