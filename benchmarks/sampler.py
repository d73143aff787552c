"""What choosing a token costs, by sampling setting, on distributions that are peaked or flat.

    python -m benchmarks.sampler [--vocab 49152] [--rows 16]

Prints the machine line and the least CPU time a row, on one thread: a step pays it once for each sequence that it samples.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks import machine
from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence
from pagemill_server.model.sampler import sample

HISTORY = 2000  # tokens of prompt and output, where penalties look back
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "repetition 1.1": {"repetition_penalty": 1.1},
    "frequency 0.5": {"frequency_penalty": 0.5},
    "logprobs 5": {"logprobs": 5},
}


def seconds_a_row(logits: torch.Tensor, params: SamplingParams, repeats: int) -> float:
    sequences = [
        ScheduledSequence(
            *(row, (0,), 0, (0,), params, row, 5), num_prompt_tokens=HISTORY // 2, history=tuple(range(HISTORY))
        )
        for row in range(len(logits))
    ]
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        sample(logits, sequences)
        taken.append(time.process_time() - began)
    return min(taken) / len(logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=49152, help="SmolLM2's unless said otherwise")
    parser.add_argument("--rows", type=int, default=16, help="sequences in a step")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine.describe().line())
    print(f"\nmicroseconds a row, {options.rows} rows of {options.vocab} tokens\n")
    print("| setting | peaked | flat |\n| --- | --- | --- |")
    noise = torch.randn(options.rows, options.vocab, generator=torch.Generator().manual_seed(0))
    peaked = noise * 2
    peaked[:, :20] += 12  # twenty tokens have nearly everything
    for name, params in SETTINGS.items():
        with torch.inference_mode():
            rows = [seconds_a_row(logits, SamplingParams(**params), options.repeats) for logits in (peaked, noise / 10)]
        print(f"| {name} | {' | '.join(f'{seconds * 1e6:.0f}' for seconds in rows)} |")


if __name__ == "__main__":
    main()
