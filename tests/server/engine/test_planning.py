"""What the runner is told of one sequence."""

from typing import Any

import pytest

from pagemill_server.engine.kv_cache import KVCache
from pagemill_server.engine.planning import plan
from pagemill_server.engine.schedule import ScheduledSequence
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request

PROMPT = (10, 11, 12, 13, 14)


def planned(
    num_tokens: int,
    *,
    computed: int = 0,
    output: tuple[int, ...] = (),
    index: int = 0,
    reported: int = 0,
    pooling: bool = False,
    max_tokens: int = 4,
    **sampling: Any,
) -> ScheduledSequence:
    request = make_request(PROMPT, max_tokens, sampling=sampling, pooling=pooling)
    sequence = Sequence(0, request, seed=3, index=index, num_computed_tokens=computed, num_prompt_logprobs=reported)
    sequence.token_ids += output
    cache = KVCache(10, 4)
    cache.grow(sequence, sequence.num_tokens)
    return plan(sequence, num_tokens, cache)


def test_a_plain_sequence_carries_nothing_that_nobody_needs() -> None:
    entry = planned(1, computed=5, output=(20,))
    assert (entry.token_ids, entry.start, entry.output_position, entry.seed) == ((20,), 5, 1, 3)
    assert (entry.history, entry.prompt_targets, entry.num_prompt_tokens, entry.pooling) == (None, (), 0, False)
    assert entry.sampling is not None


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 0.1}, {"presence_penalty": -0.1}, {"repetition_penalty": 1.1}]
)
def test_penalties_need_what_came_before(penalty: dict[str, float]) -> None:
    entry = planned(1, computed=6, output=(20, 21), **penalty)
    assert (entry.history, entry.num_prompt_tokens) == ((*PROMPT, 20, 21), 5)
    assert planned(3, **penalty).history is None, "not where nothing is sampled"


def test_a_grammar_needs_the_output() -> None:
    assert planned(1, computed=6, output=(20, 21), grammar="g").output_tokens == (20, 21)
    assert planned(5, grammar="g").output_tokens == ()
    assert planned(3, grammar="g").output_tokens is None, "not where nothing is sampled"
    assert planned(1, computed=6, output=(20, 21)).output_tokens is None


@pytest.mark.parametrize(
    ("computed", "tokens", "reported", "targets"),
    [
        pytest.param(0, 5, 0, (11, 12, 13, 14), id="a whole prompt"),
        pytest.param(0, 2, 0, (11, 12), id="the first chunk"),
        pytest.param(2, 2, 2, (13, 14), id="the next chunk, which has the last target"),
        pytest.param(4, 1, 4, (), id="nothing of the prompt follows its last token"),
        pytest.param(0, 2, 2, (), id="reported before a preemption"),
        pytest.param(0, 4, 2, (11, 12, 13, 14), id="reported in part"),
    ],
)
def test_prompt_targets_are_the_tokens_that_follow(
    computed: int, tokens: int, reported: int, targets: tuple[int, ...]
) -> None:
    entry = planned(tokens, computed=computed, reported=reported, prompt_logprobs=2)
    assert entry.prompt_targets == targets
    assert entry.prompt_top == (2 if targets else 0)
    assert entry.num_prompt_tokens == (5 if targets else 0)


def test_prompt_targets_are_the_first_sequences_only() -> None:
    assert planned(5, prompt_logprobs=2, n=2, index=1).prompt_targets == ()


def test_no_prompt_targets_after_the_prompt() -> None:
    assert planned(1, computed=6, output=(20, 21), reported=4, prompt_logprobs=2).prompt_targets == ()


def test_pooling_samples_nothing() -> None:
    assert not planned(3, pooling=True).pooling
    entry = planned(2, computed=3, pooling=True)
    assert (entry.pooling, entry.sampling) == (True, None)


def test_who_wants_no_token_gets_none() -> None:
    assert planned(5, max_tokens=0).sampling is None
