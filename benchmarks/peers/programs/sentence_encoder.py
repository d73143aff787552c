"""Makes vectors of sentences with sentence-transformers as `lines` asks; called with a model's folder and what it computes in,
"float32" or "bfloat16". Its best batch counts."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

BATCHES = (16, 64)
THREADS = 2


def main() -> None:
    torch.set_num_threads(THREADS)
    model = SentenceTransformer(sys.argv[1], device="cpu", model_kwargs={"dtype": getattr(torch, sys.argv[2])})
    say({"event": "ready"})
    model.encode(["Hello"])
    say({"event": "first"})
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        say({"seconds": min(seconds(model, texts, batch) for batch in BATCHES)})


def seconds(model: Any, texts: list[str], batch: int) -> float:
    began = time.perf_counter()
    model.encode(texts, batch_size=batch, show_progress_bar=False)
    return time.perf_counter() - began


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
