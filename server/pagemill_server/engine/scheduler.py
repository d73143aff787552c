"""What the next step computes: which sequences, how many tokens of each, in which blocks.

There are no prefill and decode phases. Each running sequence has `num_computed_tokens` that catch up with `num_tokens` under one
budget of tokens a step, so a long prompt in chunks, a resumption, what a prefix hit leaves over and a decode are the same thing.
Called by `engine`; knows neither torch nor the model. What a policy answers can change the order, never these promises:

* Budget: no more sequences run than the budget has tokens, and each that isn't being fetched computes one at least in every step.
* Feasibility: the engine takes no sequence, and lets none become one, that could not run alone. The head of the queue always fits
  an empty pool, which needs neither the watermark nor the policy's consent, so waiting ends when the running do.
* Progress: a sequence takes the blocks of all its known tokens, and of one more, when it is admitted, so it wants another only
  after it has sampled; and to a newcomer only those give way that have had a token since they were admitted. So each preemption
  is paid for with a sampled token, of which there is an end. Nobody passes a blocked head for longer than `bypass_seconds`.
"""

from __future__ import annotations

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.admission import Admissions
from pagemill_server.engine.draft import Draft
from pagemill_server.engine.errors import SchedulerStuck
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.planning import plan
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.roster import Roster
from pagemill_server.engine.schedule import SchedulerOutput
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.tier_costs import FixedCosts, TierCosts


class Scheduler:
    """Plans over the sequences of `roster`, whose blocks are `kv_cache`'s."""

    def __init__(
        self, kv_cache: KVCache, config: SchedulerConfig, policy: Policy, costs: TierCosts | None = None
    ) -> None:
        self.roster = Roster(kv_cache, policy)
        self._kv_cache = kv_cache
        self._admissions = Admissions(self.roster, kv_cache, costs or FixedCosts(fetch=True), config)
        self.configure(config, policy)

    def configure(self, config: SchedulerConfig, policy: Policy) -> None:
        """Change what is hot, between two steps: nothing that waits or runs is lost.

        Fewer places: nobody is admitted until as many run. A budget that is smaller than what runs: the excess is preempted.
        """
        assert config.max_num_seqs > 0, config
        assert config.max_num_batched_tokens > 0, config
        self._config = self._admissions.config = config
        if policy is not self.roster.policy:
            self.roster.follow(policy)

    def schedule(self, now: float) -> SchedulerOutput:
        """Plan one step; empty when there is nothing to do but to wait for a fetch. Raises SchedulerStuck."""
        roster, budget = self.roster, self._config.max_num_batched_tokens
        preempted = self._make_room()
        draft = Draft(budget)
        draft.share(roster.active(), roster.waiting.turn)
        if not preempted:  # blocks that a preemption has just freed are for those that run
            self._admissions.fill(draft, now)
        draft.give_out_rest()
        sequences = tuple(plan(roster.running[s], tokens, self._kv_cache) for s, tokens in draft.tokens.items())
        if not sequences and roster.has_work and not roster.in_flight:
            raise SchedulerStuck(
                f"{roster.num_waiting} sequences wait, {len(roster.running)} run, "
                f"{self._kv_cache.available} blocks are available: none can go on"
            )
        offloads = self._kv_cache.take_offloads()
        return SchedulerOutput(sequences, budget - draft.left, offloads, tuple(draft.fetches))

    def check_integrity(self) -> None:
        """For tests and idle moments. Raises KVCacheCorrupted."""
        self.roster.check_integrity()

    def _make_room(self) -> bool:
        """Let every running sequence hold what it has to compute, preempting until that fits. True: some had to give way."""
        before = self.roster.totals.num_preemptions
        running, grow = self.roster.running, self._kv_cache.grow
        for sequence in self.roster.active():
            while sequence.seq_id in running and not grow(sequence, len(sequence.token_ids)):
                self.roster.preempt(self._victim())
        while len(self.roster.active()) > self._config.max_num_batched_tokens:
            self.roster.preempt(self._victim())
        return self.roster.totals.num_preemptions > before

    def _victim(self) -> Sequence:
        """Whom the policy names, or the last admitted where it names nobody who could give way."""
        active = self.roster.active()
        victim = self.roster.policy.victim(active, None)
        return victim if victim is not None and any(victim is sequence for sequence in active) else active[-1]
