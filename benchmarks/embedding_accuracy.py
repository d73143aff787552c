"""What bfloat16 costs an embedding model in accuracy: `python -m benchmarks.embedding_accuracy`.

all-MiniLM-L6-v2 over the paragraphs of this repository's documentation, in float32, in what `--dtype auto` is here, and in
bfloat16: how near a vector is to float32's own, how far a similarity of two texts moves, and how much of a search's answer stays.
Figures of accuracy, not of speed: a busy machine does not change them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.machine import describe
from benchmarks.speed import EMBEDDING_MODEL
from pagemill_server import LLM

DOCS = Path(__file__).resolve().parents[1] / "docs"
LEAST = 80  # characters of a paragraph
NEAREST = 10


def paragraphs() -> list[str]:
    pages = (path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))
    return sorted({part.strip() for page in pages for part in page.split("\n\n") if len(part.strip()) >= LEAST})


def vectors(dtype: str, texts: list[str]) -> torch.Tensor:
    """Of length 1, [texts, size]."""
    with LLM(EMBEDDING_MODEL, dtype=dtype) as llm:
        found = torch.tensor([result.outputs.embedding for result in llm.embed(texts, truncate_prompt_tokens=-1)])
    return torch.nn.functional.normalize(found.double(), dim=1)


def nearest(similarities: torch.Tensor) -> torch.Tensor:
    """The places of the texts that are nearest to each, the nearest first [texts, NEAREST]."""
    return similarities.clone().fill_diagonal_(-2.0).topk(NEAREST, dim=1).indices


def row(name: str, found: torch.Tensor, exact: torch.Tensor) -> str:
    cosines, similarities, wanted = (found * exact).sum(1), found @ found.T, exact @ exact.T
    here, there = nearest(similarities), nearest(wanted)
    first = int((here[:, 0] == there[:, 0]).sum())
    kept = (here[:, :, None] == there[:, None, :]).any(2).double().mean()
    moved = (similarities - wanted).abs()
    return (
        f"| {name} | {cosines.mean():.6f} | {cosines.min():.6f} | {moved.mean():.5f} | {moved.max():.5f} "
        f"| {first} of {len(found)} | {100 * kept:.1f}% |"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(describe().line())
    texts = paragraphs()
    print(
        "| `--dtype` | cosine to float32's vector, mean | least | a similarity moves, mean | most | first found | first ten |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    exact: torch.Tensor | None = None
    for dtype in ("float32", "auto", "bfloat16"):
        found = vectors(dtype, texts)
        exact = found if exact is None else exact
        print(row(dtype, found, exact), flush=True)


if __name__ == "__main__":
    main()
