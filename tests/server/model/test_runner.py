"""The runner keeps the scheduler's contract: a token for each sequence that asks, none for a chunk, an empty step is free."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from tests.server.model.stepping import GREEDY, load, step_of
from tests.server.tiny import write_tiny_llama


def test_only_sequences_that_reach_their_end_are_sampled(tmp_path: Path) -> None:
    runner, stepper = load(write_tiny_llama(tmp_path))
    port: ModelRunner = runner
    output = port.run(step_of([stepper.schedule(1, [5, 6, 7]), stepper.schedule(2, [9], GREEDY)]))
    assert list(output.sampled) == [2]
    assert port.run(step_of([stepper.schedule(1, [8])])) == RunnerOutput({})
    assert port.run(SchedulerOutput((), 0)) == RunnerOutput({})


def test_the_sampled_token_is_that_of_the_last_tokens_logits(tmp_path: Path) -> None:
    runner, stepper = load(write_tiny_llama(tmp_path))
    (logits,) = stepper.logits([(1, [5, 6, 7])])
    output = runner.run(step_of([stepper.schedule(2, [5, 6, 7], GREEDY)]))
    assert output.sampled[2].token_id == int(logits[-1].argmax())


def test_a_sequence_whose_numbers_run_away_fails_alone(tmp_path: Path) -> None:
    """The weights of token 17 are NaN: a sequence that holds it fails, its neighbour and its blocks' next owner do not."""
    folder = write_tiny_llama(tmp_path, tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][17] = float("nan")
    save_file(weights, folder / "model.safetensors")
    runner, stepper = load(folder)
    healthy = list(range(40, 60))
    (alone,) = stepper.logits([(0, healthy)])
    output = runner.run(step_of([stepper.schedule(1, [5, 17, 6], GREEDY), stepper.schedule(2, healthy, GREEDY)]))
    assert output.failed == {1}
    assert output.sampled[2].token_id == int(alone[-1].argmax())
    stepper.release(1)
    (after,) = stepper.logits([(3, healthy)])  # in the failed sequence's blocks
    assert torch.equal(after, alone)
