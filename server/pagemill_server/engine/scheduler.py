"""What the next step computes: which sequences, how many tokens of each, in which blocks.

There are no prefill and decode phases. Each running sequence has `num_computed_tokens` that catch up with `num_tokens` under
one budget of tokens a step, so a long prompt in chunks, a resumption and a decode are the same thing. Called by `engine`; knows
neither torch nor the model. What a policy answers can change the order, never these promises:

* A sequence takes the blocks of all its known tokens, and of one more, when it is admitted; after that it grows by a block in
  block_size steps. So a preemption always comes after a sampled token, and work is never taken back without any being done.
* Admission never preempts, and a sequence is admitted only while budget is left over. So no more sequences run than the
  budget has tokens, at most the last admitted is inside its prompt, and every running sequence advances in every step.
* The engine takes no sequence, and lets none become one, that could not run alone: the head of the queue always fits an empty
  pool, so waiting ends when the running do.
"""

from __future__ import annotations

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.errors import KVCacheCorrupted, SchedulerStuck
from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.policies import Policy
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.waiting import WaitingQueue


class Scheduler:
    """Holds every sequence that isn't finished, in `waiting` or in `running` (by seq_id, in order of admission)."""

    def __init__(self, kv_cache: KVCache, config: SchedulerConfig, policy: Policy) -> None:
        assert config.max_num_seqs > 0, config
        assert config.max_num_batched_tokens > 0, config
        self._kv_cache = kv_cache
        self._config = config
        self._policy = policy
        self.waiting = WaitingQueue(policy)
        self.running: dict[int, Sequence] = {}
        self.num_preemptions = 0  # total

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that finished, failed or was aborted, and free its blocks. A second call does nothing."""
        if self.running.pop(sequence.seq_id, None) is None:
            self.waiting.remove(sequence)
        self._kv_cache.release(sequence)

    def schedule(self, now: float) -> SchedulerOutput:
        """Plan one step; empty when there is nothing to do. Raises SchedulerStuck."""
        preempted = self._make_room()
        budget = self._config.max_num_batched_tokens
        planned: list[ScheduledSequence] = []
        for sequence in self.running.values():
            if budget == 0:
                break
            planned.append(self._plan(sequence, budget))
            budget -= len(planned[-1].token_ids)
        # Blocks that a preemption has just freed are for those that run.
        while budget and not preempted and (admitted := self._admit(now)) is not None:
            planned.append(self._plan(admitted, budget))
            budget -= len(planned[-1].token_ids)
        if not planned and self.has_work:
            raise SchedulerStuck(
                f"{len(self.waiting)} sequences wait, {len(self.running)} run, "
                f"{self._kv_cache.num_free} blocks are free: none can go on"
            )
        return SchedulerOutput(tuple(planned), self._config.max_num_batched_tokens - budget)

    def check_integrity(self) -> None:
        """The pool adds up, and exactly the running sequences hold blocks, enough for what they computed. For tests and idle
        moments. Raises KVCacheCorrupted."""
        self._kv_cache.check_integrity()
        if self._kv_cache.holders != self.running.keys():
            raise KVCacheCorrupted(f"{sorted(self._kv_cache.holders)} hold blocks, {sorted(self.running)} run")
        for sequence in self.running.values():
            self._kv_cache.table(sequence, sequence.num_computed_tokens)

    def _make_room(self) -> bool:
        """Let every running sequence hold what it has to compute, preempting until that fits. True: some had to give way."""
        preempted = False
        for sequence in tuple(self.running.values()):
            while sequence.seq_id in self.running and not self._kv_cache.grow(sequence, sequence.num_tokens):
                self._preempt()
                preempted = True
        return preempted

    def _preempt(self) -> None:
        """Take the blocks of one running sequence away and queue it again as new; its tokens so far are kept."""
        victim = self._policy.victim(self.running.values(), None)
        assert victim is not None
        assert self.running.get(victim.seq_id) is victim, f"the policy chose {victim.seq_id}, which doesn't run"
        del self.running[victim.seq_id]
        self._kv_cache.release(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push(victim)

    def _admit(self, now: float) -> Sequence | None:
        """Start the head of the queue, if a place and the blocks are free. Nobody passes it: the order is the policy's word."""
        head = self.waiting.head()
        if head is None or len(self.running) >= self._config.max_num_seqs:
            return None
        needed = self._kv_cache.blocks_for(head.num_tokens + 1)
        if self.running and not self._policy.admit(head, needed, self._kv_cache.num_free):
            return None
        if not self._kv_cache.grow(head, head.num_tokens + 1):
            return None
        self.running[head.seq_id] = self.waiting.pop()
        if head.first_scheduled is None:
            head.first_scheduled = now
        return head

    def _plan(self, sequence: Sequence, budget: int) -> ScheduledSequence:
        start = sequence.num_computed_tokens
        end = min(sequence.num_tokens, start + budget)
        return ScheduledSequence(
            seq_id=sequence.seq_id,
            token_ids=tuple(sequence.token_ids[start:end]),
            start=start,
            block_table=self._kv_cache.table(sequence, end),
            sampling=sequence.request.sampling if end == sequence.num_tokens else None,
            seed=sequence.seed,
            output_position=sequence.num_output_tokens,
        )
