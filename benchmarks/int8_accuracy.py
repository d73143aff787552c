"""What weights of int8 cost in accuracy, and what those of 16 bits do: `python -m benchmarks.int8_accuracy`.

SmolLM2-135M over this repository's documentation, by float32 weights, by what `--dtype auto` is here, by bfloat16, and by int8:
the perplexity of windows of text, how far the log-probability of each next token moves, and how many greedy answers stay the same.
Figures of accuracy, not of speed: a busy machine does not change them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.real_model import DEMO_MODEL
from pagemill_server import LLM, SamplingParams

DOCS = Path(__file__).resolve().parents[1] / "docs"
WINDOW = 512  # tokens
PIECE = 4000  # characters that are made tokens at once
KINDS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "auto": {"dtype": "auto"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
}


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one kind: natural-log probabilities of the windows' tokens, and greedy tokens a prompt."""

    logprobs: list[float]
    greedy: list[tuple[int, ...]]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def windows(llm: LLM, count: int) -> list[list[int]]:
    """The documentation's tokens, page after page, in windows."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    pieces = [text[first : first + PIECE] for first in range(0, 8 * WINDOW * count, PIECE)]
    one = SamplingParams(max_tokens=1, temperature=0.0)
    ids = [token for result in llm.generate(pieces, one, use_tqdm=False) for token in result.prompt_token_ids]
    return [ids[first : first + WINDOW] for first in range(0, len(ids) - WINDOW + 1, WINDOW)][:count]


def answers(llm: LLM, texts: Sequence[list[int]], prompts: Sequence[list[int]], length: int) -> Answers:
    scored = llm.generate(list(texts), SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0), use_tqdm=False)
    logprobs = [
        entry[token].logprob
        for result in scored
        for token, entry in zip(result.prompt_token_ids, result.prompt_logprobs or (), strict=True)
        if entry is not None
    ]
    greedy = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
    return Answers(
        logprobs, [result.outputs[0].token_ids for result in llm.generate(list(prompts), greedy, use_tqdm=False)]
    )


def row(name: str, found: Answers, exact: Answers) -> str:
    moved = [abs(one - other) for one, other in zip(found.logprobs, exact.logprobs, strict=True)]
    pairs = list(zip(found.greedy, exact.greedy, strict=True))
    same = sum(one == other for one, other in pairs)
    first = sum(one[0] == other[0] for one, other in pairs)
    return (
        f"| {name} | {found.perplexity:.4f} | {100 * (found.perplexity / exact.perplexity - 1):+.3f}% "
        f"| {sum(moved) / len(moved):.5f} | {first} of {len(pairs)} | {same} of {len(pairs)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=40, help=f"of {WINDOW} tokens each")
    parser.add_argument("--prompts", type=int, default=50, help="greedy ones, of 64 tokens each")
    parser.add_argument("--length", type=int, default=32, help="tokens of a greedy answer")
    args = parser.parse_args()
    print(describe().line())
    print(
        "| weights | perplexity | beside float32 | mean move of a log-probability | first greedy token | whole answer |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    exact: Answers | None = None
    texts: list[list[int]] = []
    for name, options in KINDS.items():
        with LLM(DEMO_MODEL, kv_cache_memory_bytes="256MiB", **options) as llm:  # type: ignore[arg-type]
            texts = texts or windows(llm, args.windows)
            prompts = [text[:64] for text in texts] + [text[256:320] for text in texts]
            found = answers(llm, texts, prompts[: args.prompts], args.length)
        exact = exact or found
        print(row(name, found, exact), flush=True)


if __name__ == "__main__":
    main()
