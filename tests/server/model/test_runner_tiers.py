"""The runner between the tiers: what was offloaded and fetched is computed on as if it had never left, and no fetch is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig, EngineLimits, ModelOptions, SchedulerConfig
from pagemill_server.engine.schedule import BlockCopy, Fetch, ScheduledSequence, SchedulerOutput
from pagemill_server.model.load import load_runner
from pagemill_server.model.runner import Runner
from tests.server.model.stepping import GREEDY
from tests.server.tiny import write_tiny_llama

BLOCK = 4
PROMPT = tuple(range(40, 52))
OTHER = tuple(range(100, 112))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runner, EngineLimits]]:
    path: Path = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    cache = CacheConfig(block_size=BLOCK, memory_bytes=1 << 18, offloading_bytes=1 << 17)
    runner, limits, _ = load_runner(
        inspect(path), ModelOptions("tiny", ("tiny",)), cache, SchedulerConfig(), lambda done, total: None
    )
    yield runner, limits
    runner.close()


@pytest.fixture
def runner(loaded: tuple[Runner, EngineLimits]) -> Runner:
    return loaded[0]


def step(
    *sequences: ScheduledSequence, offloads: tuple[BlockCopy, ...] = (), fetches: tuple[Fetch, ...] = ()
) -> SchedulerOutput:
    return SchedulerOutput(sequences, sum(len(entry.token_ids) for entry in sequences), offloads, fetches)


def tokens(seq_id: int, ids: tuple[int, ...], start: int, table: tuple[int, ...]) -> ScheduledSequence:
    return ScheduledSequence(seq_id, ids, start, table, GREEDY, seed=0, output_position=0)


def wait_for(runner: Runner, count: int) -> set[int]:
    seen: set[int] = set()
    for _ in range(1000):
        if len(seen) >= count:
            break
        output = runner.run(step())
        assert (output.fetch_seconds > 0) == bool(output.fetched)
        seen |= output.fetched
    return seen


def test_the_host_tier_holds_what_was_asked_for(loaded: tuple[Runner, EngineLimits]) -> None:
    _, limits = loaded
    assert limits.num_host_blocks * 2 == limits.num_blocks


def test_blocks_that_were_away_are_computed_on_as_if_they_had_stayed(runner: Runner) -> None:
    """They come back into other blocks, while another sequence writes those that they had."""
    stayed = runner.run(step(tokens(0, (*PROMPT, 9), 0, (0, 1, 2, 3))))
    runner.run(step(tokens(1, PROMPT, 0, (4, 5, 6))))
    gone = (BlockCopy(6, 2), BlockCopy(5, 7), BlockCopy(4, 0))
    runner.run(step(tokens(2, OTHER, 0, (4, 5, 6)), offloads=gone))
    back = Fetch(11, (BlockCopy(0, 9), BlockCopy(7, 10), BlockCopy(2, 8)))
    reported = runner.run(step(tokens(2, (1,), 12, (4, 5, 6, 7)), fetches=(back,))).fetched
    assert (set(reported) or wait_for(runner, 1)) == {11}
    resumed = runner.run(step(tokens(1, (9,), 12, (9, 10, 8, 11))))
    assert resumed.sampled[1] == stayed.sampled[0]


def test_a_block_leaves_before_the_same_step_writes_it_and_returns_after(runner: Runner) -> None:
    """Offloaded, taken for a fetch of other content, all in one step."""
    stayed = runner.run(step(tokens(0, (*PROMPT, 9), 0, (0, 1, 2, 3))))
    runner.run(step(tokens(1, PROMPT, 0, (4, 5, 6))))
    runner.run(step(tokens(2, OTHER, 0, (8, 9, 10)), offloads=(BlockCopy(4, 0), BlockCopy(5, 1), BlockCopy(6, 2))))
    swap = step(
        offloads=(BlockCopy(8, 3), BlockCopy(9, 4), BlockCopy(10, 5)),
        fetches=(Fetch(1, (BlockCopy(0, 8), BlockCopy(1, 9), BlockCopy(2, 10))),),
    )
    assert (set(runner.run(swap).fetched) or wait_for(runner, 1)) == {1}
    assert runner.run(step(tokens(1, (9,), 12, (8, 9, 10, 11)))).sampled[1] == stayed.sampled[0]


def test_a_step_that_raises_loses_no_fetch(runner: Runner) -> None:
    outside = tokens(0, (10**6,), 0, (0,))  # no embedding: the model raises
    with pytest.raises(IndexError):
        runner.run(step(outside, fetches=(Fetch(21, (BlockCopy(0, 9),)), Fetch(22, (BlockCopy(1, 10),)))))
    with pytest.raises(IndexError):
        runner.run(step(outside))
    assert wait_for(runner, 2) == {21, 22}
    assert runner.run(step()).fetched == frozenset()
