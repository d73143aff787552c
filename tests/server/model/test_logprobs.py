"""Log-probabilities of a prompt's tokens: transformers' own, the same bits in any chunks; a bad row fails its sequence alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from pagemill_server.engine.request import SampledToken
from pagemill_server.model import logprobs
from pagemill_server.model.runner import Runner
from tests.server.model.stepping import GREEDY, Stepper, load, step_of
from tests.server.tiny import write_tiny_llama

PROMPT = torch.randint(0, 256, (150,), generator=torch.Generator().manual_seed(4)).tolist()
TOP = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> tuple[Runner, Stepper]:
    return load(tiny)


def scored(runner: Runner, stepper: Stepper, chunk: int, top: int = TOP) -> list[SampledToken]:
    """The prompt's, computed in chunks of that many tokens, the last of which samples."""
    found: list[SampledToken] = []
    for start in range(0, len(PROMPT), chunk):
        end = min(start + chunk, len(PROMPT))
        entry = stepper.schedule(1, PROMPT[start:end], GREEDY if end == len(PROMPT) else None)
        targets = tuple(PROMPT[start + 1 : end + 1])
        output = runner.run(step_of([entry._replace(prompt_targets=targets, prompt_top=top)]))
        found += output.prompt_logprobs.get(1, ())
        assert (1 in output.sampled) is (end == len(PROMPT))
    stepper.release(1)
    return found


@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 150])
def test_they_are_transformers_whatever_the_chunks(tiny: Path, loaded: tuple[Runner, Stepper], chunk: int) -> None:
    model: torch.nn.Module = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    found = scored(*loaded, chunk)
    assert [token.token_id for token in found] == PROMPT[1:]
    own = expected.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].tolist()
    assert [token.logprob for token in found] == pytest.approx(own, abs=1e-4)
    best = expected.topk(TOP)
    assert [[entry.token_id for entry in token.top] for token in found] == best.indices.tolist()
    for token, values in zip(found, best.values.tolist(), strict=True):
        assert [entry.logprob for entry in token.top] == pytest.approx(values, abs=1e-4)
    ranks = [int((row > row[token]).sum()) + 1 for row, token in zip(expected, PROMPT[1:], strict=True)]
    assert [token.rank for token in found] == ranks


def test_they_are_the_same_bits_in_any_chunks(loaded: tuple[Runner, Stepper]) -> None:
    whole = scored(*loaded, len(PROMPT))
    assert all(scored(*loaded, chunk) == whole for chunk in (1, 3, 50, 128))


def test_they_are_the_same_bits_as_when_the_token_is_sampled(loaded: tuple[Runner, Stepper]) -> None:
    runner, stepper = loaded
    sampled = runner.run(step_of([stepper.schedule(2, PROMPT[:40], replace(GREEDY, logprobs=TOP))])).sampled[2]
    entry = stepper.schedule(3, PROMPT[:40])
    targets = (*PROMPT[1:40], sampled.token_id)
    known = runner.run(step_of([entry._replace(prompt_targets=targets, prompt_top=TOP)])).prompt_logprobs[3][-1]
    stepper.release(2)
    stepper.release(3)
    assert replace(known, rank=None) == sampled
    assert known.rank == 1


def test_none_beside_them_is_their_own_alone(loaded: tuple[Runner, Stepper]) -> None:
    found = scored(*loaded, 64, top=0)
    assert all(token.top == () and token.rank for token in found)


def test_a_long_chunks_logits_are_never_there_at_once(loaded: tuple[Runner, Stepper]) -> None:
    seen: list[int] = []
    runner, stepper = loaded
    head = runner._model.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden))
        return head(hidden)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner._model, "logits", counted)
        scored(runner, stepper, len(PROMPT))
    assert max(seen) <= logprobs._ROWS
    assert sum(seen) == len(PROMPT)  # the last row is that of the sampled token


def test_a_sequence_whose_prompt_runs_away_fails_alone(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][17] = float("nan")
    save_file(weights, folder / "model.safetensors")
    runner, stepper = load(folder)
    bad = stepper.schedule(1, [5, 17, 6], GREEDY)._replace(prompt_targets=(17, 6))
    good = stepper.schedule(2, [5, 7, 6], GREEDY)._replace(prompt_targets=(7, 6))
    chunk = stepper.schedule(3, [5, 17, 6])._replace(prompt_targets=(17, 6, 9))
    output = runner.run(step_of([bad, good, chunk]))
    assert output.failed == {1, 3}
    assert list(output.sampled) == list(output.prompt_logprobs) == [2]
