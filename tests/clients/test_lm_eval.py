"""lm-eval's `local-completions` against our server: each log-likelihood is transformers' own, within 1e-3.

It asks `/v1/completions` with `echo` and `logprobs`, and our `/tokenize` for the tokens. The task is our own, because no hub can be
asked; the judge reads the same weights (tests/server/real_model.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pagemill_server.text.tokenizer import load_tokenizer
from tests.clients.conftest import Run
from tests.server.real_model import NAME, judge, real_model

pytestmark = [pytest.mark.clients, pytest.mark.model]

TASK = Path(__file__).parent / "lm_eval_task"


def test_every_log_likelihood_is_transformers(run: Run, generating: str, tmp_path: Path) -> None:
    run(
        *("lm_eval", "run", "--model", "local-completions", "--tasks", "capitals", "--include_path", str(TASK)),
        *("--model_args", f"model={NAME},base_url={generating}/completions,num_concurrent=4,max_length=1024"),
        *("--log_samples", "--output_path", str(tmp_path)),
    )
    (samples,) = tmp_path.rglob("samples_capitals_*.jsonl")
    tokenizer = load_tokenizer(real_model())
    compared = 0
    for line in samples.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        for arguments, (answered, _greedy) in zip(sample["arguments"].values(), _floats(sample), strict=True):
            context, answer = arguments["arg_0"], arguments["arg_1"]
            both, before = tokenizer.encode(context + answer, False), tokenizer.encode(context, False)
            assert float(answered) == pytest.approx(_log_likelihood(both, len(before)), abs=1e-3), (context, answer)
            compared += 1
    assert compared == 32


def _floats(sample: dict[str, list[list[list[str]]]]) -> list[tuple[str, str]]:
    return [(answer[0][0], answer[0][1]) for answer in sample["resps"]]


def _log_likelihood(ids: Sequence[int], start: int) -> float:
    """Of the tokens from `start` on, after those before them."""
    with torch.inference_mode():
        logprobs = judge()(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    return sum(float(logprobs[place - 1, ids[place]]) for place in range(start, len(ids)))
