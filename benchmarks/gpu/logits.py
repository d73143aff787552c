"""Our logits beside those of transformers: `python -m benchmarks.gpu.logits MODEL` prints one line of JSON.

The bound: against transformers in float32, our bfloat16 is off by at most twice what transformers' own bfloat16 is off by (root
mean square over all positions of all prompts). A process of its own, so that its memory is gone afterwards.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig
from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput

TIMES = 2.0  # of transformers' own error
LENGTHS = (1, 17, 300)  # tokens; a lone one, an odd one, more than a tile
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """Root mean squares of differences of logits."""

    ours: float  # ours in bfloat16, from transformers in the reference's type
    theirs: float  # transformers in bfloat16, from the same
    reference: str
    scale: float  # of the reference's logits themselves
    same_first: float  # share of positions at which ours and the reference's likeliest token are the same
    decoded: float  # ours computed token by token, from ours computed at once

    @property
    def holds(self) -> bool:
        return self.ours <= TIMES * self.theirs


def prompts(vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in LENGTHS]


def rms(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """Over everything in them."""
    difference = torch.cat([(a.double() - b.double()).flatten() for a, b in zip(one, other, strict=True)])
    return float(difference.square().mean().sqrt())


def compare(
    reference: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    ours: Sequence[torch.Tensor],
    decoded: Sequence[torch.Tensor],
    name: str,
) -> Comparison:
    """Each a tensor [tokens, vocab] a prompt."""
    same = torch.cat([a.argmax(1) == b.argmax(1) for a, b in zip(reference, ours, strict=True)])
    zeros = [torch.zeros_like(one) for one in reference]
    return Comparison(
        ours=rms(ours, reference),
        theirs=rms(theirs, reference),
        reference=name,
        scale=rms(reference, zeros),
        same_first=float(same.double().mean()),
        decoded=rms(decoded, ours),
    )


def of_transformers(folder: Path, ids: Sequence[Sequence[int]], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM  # here: seconds, and only this needs it

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()  # type: ignore[arg-type]
    with torch.inference_mode():
        found = [model(torch.tensor([prompt], device=device)).logits[0].float().cpu() for prompt in ids]
    del model
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def of_ours(
    folder: Path, ids: Sequence[Sequence[int]], device: str, dtype: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of all tokens of a prompt at once, and of each alone after those before it (on a GPU by the decode kernel)."""
    from pagemill_server.model.load import load_runner

    cache = CacheConfig(block_size=BLOCK, memory_bytes=64 << 20, gpu_memory_utilization=0.8)
    options = ModelOptions(str(folder), ("m",), dtype=dtype, device=device, max_model_len=max(LENGTHS) + BLOCK)
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=2 * max(LENGTHS))
    runner, _, _ = load_runner(inspect(folder), options, cache, scheduler, lambda done, total: None)
    return logits_of(runner.logits, ids, at_once=True), logits_of(runner.logits, ids, at_once=False)


def logits_of(
    compute: Callable[[SchedulerOutput], torch.Tensor], ids: Sequence[Sequence[int]], *, at_once: bool
) -> list[torch.Tensor]:
    """One sequence after another, in blocks from 0 on."""
    found = []
    for prompt in ids:
        pieces = [(0, len(prompt))] if at_once else [(place, place + 1) for place in range(len(prompt))]
        rows = [compute(_step(prompt, *piece)).float().cpu() for piece in pieces]
        found.append(torch.cat(rows))
    return found


def _step(prompt: Sequence[int], first: int, end: int) -> SchedulerOutput:
    table = tuple(range(-(-end // BLOCK)))
    tokens = tuple(prompt[first:end])
    sampling = SamplingParams(temperature=0.0)
    return SchedulerOutput(
        (ScheduledSequence(0, tokens, first, table, sampling, seed=0, output_position=0),), len(tokens)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.logits")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args(argv)
    files = inspect(args.model)
    ids = prompts(files.config.vocab_size)
    fits = args.device == "cpu" or 2.2 * files.weights_bytes < torch.cuda.mem_get_info()[0]
    wide = torch.float32 if fits else torch.bfloat16
    reference = of_transformers(args.model, ids, wide, args.device)
    theirs = reference if wide is torch.bfloat16 else of_transformers(args.model, ids, torch.bfloat16, args.device)
    if wide is torch.bfloat16:  # float32 does not fit: the processor's is the reference
        reference = of_transformers(args.model, ids, torch.float32, "cpu")
    ours, decoded = of_ours(args.model, ids, args.device, "bfloat16")
    found = compare(reference, theirs, ours, decoded, "transformers, float32")
    sys.stdout.write(json.dumps(asdict(found) | {"holds": found.holds, "times": TIMES}) + "\n")
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
