"""The one owner of KV memory: which block holds which tokens of which sequence, on the device and in the host tier.

Blocks are numbers here; the tensors behind them are the runner's. The scheduler calls `match`, `admit` and `grow` before tokens are
computed, `commit` after, and `release` when a sequence ends or is preempted; nobody else keeps a block. No torch, and no policies.

Only full blocks are ever shared, so what a sequence writes goes into blocks that it alone holds. The one exception is a fork: it
may hold the leader's blocks in the very step that fills them.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from pagemill_server.engine.block_pool import BlockPool
from pagemill_server.engine.host_tier import HostTier
from pagemill_server.engine.prefix import NO_MATCH, BlockHasher, PrefixMatch
from pagemill_server.engine.schedule import BlockCopy, Fetch
from pagemill_server.engine.sequence import Sequence
from pagemill_server.engine.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence holds its blocks now."""

    cached_tokens: int  # of its beginning, not to be computed: there already, or there when `fetch` is done
    fetch: Fetch | None = (
        None  # to be put into this step's output; until its ticket is reported the sequence must not run
    )


@dataclass(slots=True)
class _Holding:
    blocks: tuple[int, ...]  # replaced when the sequence grows: a step hands it over without a copy
    num_known: int = 0  # the first blocks, full and computed by a step that succeeded: their content has its hash
    ticket: int | None = None  # of the fetch under way
    num_known_then: int = 0  # num_known, once it is done


class KVCache:
    """`num_blocks` device blocks and `num_host_blocks` host blocks of `block_size` tokens, and each sequence's block table.

    Without `prefix_caching` requests share nothing, but for the n sequences of one; with a host tier a preempted sequence still
    finds what it had itself.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool = True, num_host_blocks: int = 0
    ) -> None:
        assert num_blocks > 0, num_blocks
        assert block_size > 0, block_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_host_blocks = num_host_blocks
        self._pool = BlockPool(num_blocks)
        self._transfers = Transfers(num_host_blocks)
        self._host = self._transfers.host
        self._private = not prefix_caching
        self._names_blocks = prefix_caching or num_host_blocks > 0
        self._hasher = BlockHasher(block_size, private=self._private)
        self._holdings: dict[int, _Holding] = {}
        self._fetching: dict[int, Sequence] = {}  # that hold their blocks still, by ticket

    # How full it is.

    @property
    def capacity(self) -> int:
        """Tokens, were one sequence to have all of it."""
        return self.num_blocks * self.block_size

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but whose content is kept for a prefix to come."""
        return self._pool.num_cached

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold, each counted once."""
        return self._pool.num_held

    @property
    def num_parked(self) -> int:
        """Blocks of sequences that are gone, into which a fetch still copies."""
        return self._pool.num_parked

    @property
    def available(self) -> int:
        """Blocks that could be handed out now: free ones, and cached ones that would be evicted."""
        return self._pool.available

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, 0..1."""
        return self.num_held / self.num_blocks

    @property
    def num_host_used(self) -> int:
        return self._host.num_used

    @property
    def num_offloaded(self) -> int:
        """Blocks that were copied to the host tier, total."""
        return self._transfers.num_offloaded

    @property
    def num_fetched(self) -> int:
        """Blocks that were copied from the host tier, total."""
        return self._transfers.num_fetched

    @property
    def holders(self) -> frozenset[int]:
        """The seq_ids that hold blocks."""
        return frozenset(self._holdings)

    # What a snapshot shows.

    @property
    def cached(self) -> tuple[int, ...]:
        """Blocks, those first that would be evicted first."""
        return self._pool.cached

    @property
    def parked(self) -> tuple[int, ...]:
        return self._pool.parked

    def held_by(self, sequence: Sequence) -> tuple[int, ...]:
        """Its block table; empty for one that holds nothing."""
        holding = self._holdings.get(sequence.seq_id)
        return () if holding is None else holding.blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # What is there already. Neither call changes anything; an answer holds until blocks are handed out or released.

    def match(self, sequence: Sequence) -> PrefixMatch:
        """The longest beginning of the sequence that is there already, leaving one token at least to compute.

        Device blocks first, then host blocks; `replace(match, host=())` leaves those out. Nothing for a request that asks for
        the log-probabilities of its prompt: they come out of computing it.
        """
        if not self._names_blocks or sequence.request.sampling.prompt_logprobs is not None:
            return NO_MATCH
        most = (sequence.num_tokens - 1) // self.block_size
        device = self._find(self._pool, sequence, 0, most)
        return PrefixMatch(device, self._find(self._host, sequence, len(device), most))

    def shared(self, leader: Sequence, sequence: Sequence) -> PrefixMatch:
        """For another of the n sequences of a request: the leader's blocks that the prompt fills, leaving one token to compute.

        For a leader whose plan for this step reaches its prompt's end, or that is past it; whatever caching is allowed.
        """
        assert leader.request is sequence.request, f"{sequence.seq_id} isn't of the request of {leader.seq_id}"
        holding = self._holdings[leader.seq_id]
        if holding.ticket is not None:
            return NO_MATCH
        most = (sequence.num_prompt_tokens - 1) // self.block_size
        return PrefixMatch(holding.blocks[:most], leader=leader.seq_id)

    def blocks_to_admit(self, num_tokens: int, match: PrefixMatch = NO_MATCH) -> int:
        """How many of the `available` blocks an admission would take; a matched block counts unless somebody holds it."""
        return self.blocks_for(num_tokens) - sum(self._pool.is_held(block) for block in match.device)

    # Blocks to sequences, and back.

    def admit(self, sequence: Sequence, num_tokens: int, match: PrefixMatch = NO_MATCH) -> Admission | None:
        """Let a sequence that holds nothing have blocks for positions 0 .. num_tokens-1, the matched ones first.

        All of them or none; None where too few are available.
        """
        assert sequence.seq_id not in self._holdings, f"sequence {sequence.seq_id} holds blocks already"
        self._check_match(sequence, match)
        if self.blocks_to_admit(num_tokens, match) > self.available:
            return None
        for block in match.device:
            self._pool.hold(block)
        for block in match.host:
            self._host.pin(block)
        new = self._take(self.blocks_for(num_tokens) - len(match.device))
        holding = _Holding(match.device + new, self._known(sequence, match))
        self._holdings[sequence.seq_id] = holding
        num_cached = len(match.device) + len(match.host)
        return Admission(num_cached * self.block_size, self._begin_fetch(sequence, holding, match))

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let the sequence hold blocks for positions 0 .. num_tokens-1. All of them or none; False where too few are available."""
        holding = self._holdings.get(sequence.seq_id)
        if holding is None:
            return self.admit(sequence, num_tokens) is not None
        if num_tokens <= len(holding.blocks) * self.block_size:
            return True
        missing = self.blocks_for(num_tokens) - len(holding.blocks)
        if missing > self.available:
            return False
        holding.blocks += self._take(missing)
        return True

    def table(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """The blocks that hold positions 0 .. num_tokens-1, in order. The sequence must have grown to that length."""
        table = self._holdings[sequence.seq_id].blocks
        needed = self.blocks_for(num_tokens)
        assert needed <= len(table), f"sequence {sequence.seq_id} holds {len(table)} blocks of the {needed} it uses"
        return table if needed == len(table) else table[:needed]

    def commit(self, sequence: Sequence) -> None:
        """After a step that succeeded has moved `num_computed_tokens`: what it filled may be found by others from now on."""
        holding = self._holdings[sequence.seq_id]
        full = sequence.num_computed_tokens // self.block_size
        if full > holding.num_known and self._names_blocks:
            self._name(sequence, holding, holding.num_known, full)
            holding.num_known = full

    def release(self, sequence: Sequence, *, returns: bool = False) -> None:
        """Take all of a sequence's blocks back. The only way back to the pool; a second call does nothing.

        What is full stays cached, and goes last block first when room is wanted. `returns`: the sequence is preempted and will
        be admitted again; otherwise nothing is kept of a request that shares with nobody.
        """
        if self._private and not returns:
            self.forget(sequence)
        holding = self._holdings.pop(sequence.seq_id, None)
        if holding is None:
            return
        in_flight: Set[int] = frozenset()
        if holding.ticket is not None:
            in_flight = self._transfers.targets({holding.ticket})
            del self._fetching[holding.ticket]
        # Where another has taken the name of a copy of ours meanwhile and is gone, ours may have it.
        self._name(sequence, holding, 0, holding.num_known)
        for index in reversed(range(len(holding.blocks))):
            block = holding.blocks[index]
            if block in in_flight:
                self._pool.park(block)
            else:
                self._pool.drop(block)
            # A namesake of ours was used as much as ours: it must not go before what follows it.
            if self._pool.hash_of(block) is None and index < len(sequence.block_hashes):
                self._pool.touch(sequence.block_hashes[index])

    def forget(self, sequence: Sequence) -> None:
        """Let nobody find what the sequence computed: for one whose numbers ran away. It goes on holding its blocks."""
        for content in sequence.block_hashes:
            self._pool.forget(content)
            self._host.forget(content)
        if sequence.seq_id in self._holdings:
            self._holdings[sequence.seq_id].num_known = 0

    # Copies between the tiers.

    def take_offloads(self) -> tuple[BlockCopy, ...]:
        """What was evicted to the host tier since the last call: copies for the step that is planned now.

        Their content can be fetched from the next step on; so a step is over before the next call.
        """
        return self._transfers.take_offloads()

    def confirm_offloads(self) -> None:
        """The step that carried them has succeeded: they can be fetched from now on. Else the next `take_offloads` says so."""
        self._transfers.confirm_offloads()

    def undo_offloads(self, copies: Iterable[BlockCopy]) -> None:
        """The step that carried them failed: what the host blocks hold now is nothing that may be read."""
        self._transfers.undo_offloads(copies)

    def fetched(self, tickets: Iterable[int]) -> frozenset[int]:
        """Fetches are done: the seq_ids that may run now. Unknown tickets, and those of sequences that are gone, bring none."""
        return frozenset(seq_id for ticket in tickets if (seq_id := self._end_fetch(ticket)) is not None)

    def check_integrity(self) -> None:
        """Free + cached + held + parked = total, each block in one place and as often held as tables name it; the host tier too.

        O(blocks): for tests and for idle moments. Raises KVCacheCorrupted.
        """
        holders = [0] * self.num_blocks
        for holding in self._holdings.values():
            for block in holding.blocks:
                holders[block] += 1
        self._pool.check_integrity(holders, self._transfers.targets(self._transfers.under_way - self._fetching.keys()))
        self._transfers.check_integrity()

    def check_order(self) -> None:
        """No cached block goes before what follows it in its chain. For tests: otherwise nothing is wrong, but less is found."""
        self._pool.check_order()

    # Inside.

    def _find(self, tier: BlockPool | HostTier, sequence: Sequence, first: int, most: int) -> tuple[int, ...]:
        found = []
        for index in range(first, most):
            block = tier.find(self._hasher.extend(sequence, index + 1)[index])
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def _check_match(self, sequence: Sequence, match: PrefixMatch) -> None:
        """A match from before blocks changed hands would mix up answers."""
        if match.leader is not None:
            held = self._holdings[match.leader].blocks
            assert held[: len(match.device)] == match.device, f"{match} isn't what {match.leader} holds"
            return
        hashes = sequence.block_hashes
        device = tuple(self._pool.find(content) for content in hashes[: len(match.device)])
        host = tuple(self._host.find(hashes[len(device) + index]) for index in range(len(match.host)))
        assert (device, host) == (match.device, match.host), f"{match} is out of date"

    def _known(self, sequence: Sequence, match: PrefixMatch) -> int:
        """How many matched blocks have their content already; a fork may come in the step that fills them."""
        if match.leader is None:
            return len(match.device)
        if self._names_blocks:
            self._hasher.extend(sequence, len(match.device))
        return min(self._holdings[match.leader].num_known, len(match.device))

    def _take(self, count: int) -> tuple[int, ...]:
        blocks, evicted = self._pool.take(count)
        if self.num_host_blocks:
            self._transfers.offload(evicted)
        return blocks

    def _begin_fetch(self, sequence: Sequence, holding: _Holding, match: PrefixMatch) -> Fetch | None:
        if not match.host:
            return None
        first = len(match.device)
        holding.num_known_then = first + len(match.host)
        fetch = self._transfers.begin(match.host, holding.blocks[first : holding.num_known_then])
        holding.ticket = fetch.ticket
        self._fetching[fetch.ticket] = sequence
        return fetch

    def _end_fetch(self, ticket: int) -> int | None:
        """The seq_id that had waited for it."""
        fetch = self._transfers.end(ticket)
        if fetch is None:
            return None
        sequence = self._fetching.pop(ticket, None)
        if sequence is None:
            for copy in fetch.copies:
                self._pool.unpark(copy.target)
            return None
        holding = self._holdings[sequence.seq_id]
        self._name(sequence, holding, holding.num_known, holding.num_known_then)
        holding.num_known = holding.num_known_then
        holding.ticket = None
        return sequence.seq_id

    def _name(self, sequence: Sequence, holding: _Holding, first: int, last: int) -> None:
        hashes = self._hasher.extend(sequence, last)
        for index in range(first, last):
            self._pool.name(holding.blocks[index], hashes[index], hashes[index - 1] if index else None)
