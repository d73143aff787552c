"""What keeping blocks after their request gains, and what a host tier adds: hit rates of a recorded trace, in virtual time.

Dropping at release forgets a block as soon as nobody holds it: sharing between requests that run at the same time is all that is
left. A part of `memory_techniques`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.offered import Offered
from benchmarks.replay_figures import figures
from benchmarks.replay_run import Replay, Setting, limits_for, make
from benchmarks.step_cost import StepCost
from pagemill_server.config import CacheConfig, SchedulerConfig

BLOCK = 32  # tokens


@dataclass(frozen=True, slots=True)
class Kept:
    """One way to keep blocks."""

    way: str
    device_tokens: int
    host_tokens: int
    hit_rate: float  # of the prompts' tokens
    host_hit_rate: float
    requests_s: float  # that the modelled machine serves at most


def measure(requests: Sequence[Offered], cost: StepCost, device: int, hosts: Sequence[int]) -> list[Kept]:
    """No sharing, dropped at release, least recently used, and the last with host tiers of growing size."""
    found = [
        _run("no sharing", requests, cost, device, 0, sharing=False),
        _run("dropped at release", requests, cost, device, 0, drop=True),
        _run("least recently used", requests, cost, device, 0),
    ]
    return found + [_run("and a host tier", requests, cost, device, host) for host in hosts]


def _run(
    way: str,
    requests: Sequence[Offered],
    cost: StepCost,
    device: int,
    host: int,
    *,
    sharing: bool = True,
    drop: bool = False,
) -> Kept:
    limits = limits_for(requests, device // BLOCK, BLOCK, host // BLOCK)
    scheduler = SchedulerConfig()
    replay = make(Setting(cost, scheduler, CacheConfig(BLOCK, prefix_caching=sharing), limits, tpot_target=1.0))
    if drop:
        replay.watch = _drop
    replay.saturated(requests, 2 * scheduler.max_num_seqs)
    done = figures(replay, 0.0)
    return Kept(way, device, host, done.hit_rate, done.host_hit_rate, len(requests) / done.span_s)


def _drop(replay: Replay) -> None:
    """Nobody's blocks become free. Reaches inside the cache: no setting of it forgets this much."""
    pool = replay.engine.kv_cache._pool
    if not pool.num_cached:
        return
    for block in range(pool.num_blocks):
        if not pool.is_held(block) and (content := pool.hash_of(block)) is not None:
            pool.forget(content)
