"""What a grammar costs: microseconds a mask by kind of grammar, and what one that is held to one does to the steps of 16 others.

    python -m benchmarks.grammar_masks [--steps 40] [--rounds 5] [--out FILE]

The seventeenth sequence is plain, or must be a JSON object: in turn, round by round, in one process on one model. Prints medians,
and that of the paired differences.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine, record
from benchmarks.real_model import DEMO_MODEL, RealModel, load, prompt, request
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.text.grammar import Grammar, GrammarCompiler, choice, compile, json_object, json_schema, regex

PLAIN = 16
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["cat", "dog", "bird"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, Grammar] = {
    "schema": json_schema(FORM),
    "any object": json_object(),
    "choice of 3": choice(["positive", "negative", "neutral"]),
    "choice of 1000": choice([f"item {number * 7919 % 100_003}" for number in range(1000)]),
    "regex": regex(r"[A-Z][a-z]+ \d{4}-\d\d-\d\d"),
    "any text": regex("(?s:.*)"),
}


def mask_microseconds(grammars: GrammarCompiler, grammar: Grammar, count: int) -> list[float]:
    """Of masks along random texts of the grammar, with the tokens read before each."""
    text, taken, chance = compile(grammar), [], random.Random(0)
    grammars.check(text)
    while len(taken) < count:
        matcher, token = grammars.matcher(text), None
        for _ in range(60):
            began = time.process_time()
            if token is not None:
                matcher.consume_tokens([token])
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            forbidden = np.unpackbits(bits, bitorder="little") == 0
            taken.append((time.process_time() - began) * 1e6)
            if matcher.is_stopped():
                break
            token = int(chance.choice(np.flatnonzero(~forbidden)))
    return taken


def step_seconds(model: RealModel, grammar: str, steps: int) -> list[float]:
    """CPU time of decode steps of PLAIN sequences and one more, on one thread: what else runs on the machine counts least so."""
    engine = Engine(model.runner, model.limits, SchedulerConfig(max_num_batched_tokens=2048), prefix_caching=False)
    for number in range(PLAIN + 1):
        asked = request(f"r{number}", prompt(model.limits.vocab_size, 64, number), steps + 8)
        if number == PLAIN and grammar:
            asked = replace(asked, sampling=replace(asked.sampling, grammar=grammar))
        engine.add(asked)
    for _ in range(4):
        engine.step()
    taken = []
    for _ in range(steps):
        began = time.process_time()
        engine.step()
        taken.append(time.process_time() - began)
    engine.abort_all()
    return taken


def paired(model: RealModel, grammar: str, steps: int, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"plain": [], "held": []}
    for number in range(rounds):
        for kind in list(found) if number % 2 else list(found)[::-1]:
            found[kind] += step_seconds(model, grammar if kind == "held" else "", steps)
    return found


def report(masks: Mapping[str, list[float]], steps: Mapping[str, list[float]]) -> str:
    lines = [
        [name, *(f"{np.percentile(taken, share):.0f}" for share in (50, 95)), f"{max(taken):.0f}"]
        for name, taken in masks.items()
    ]
    plain = steps["plain"]
    rows = [
        [kind, f"{statistics.median(taken) * 1e3:.1f}",
         f"{statistics.median(a - b for a, b in zip(taken, plain, strict=True)) * 1e3:+.2f}"]
        for kind, taken in steps.items()
    ]  # fmt: skip
    return "\n\n".join(
        (
            record.table(["grammar", "us a mask", "95%", "most"], lines),
            record.table(["the seventeenth", "CPU ms a step", "against plain"], rows),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--masks", type=int, default=600, help="masks of each kind of grammar")
    parser.add_argument("--steps", type=int, default=40, help="steps measured in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = load(options.model, kv_tokens=8192, longest=1024)
    torch.set_num_threads(1)
    here = machine.describe()
    print(here.line() + "\n")
    masks = {name: mask_microseconds(model.grammars, grammar, options.masks) for name, grammar in GRAMMARS.items()}
    steps = paired(model, compile(json_object()), options.steps, options.rounds)
    print(report(masks, steps))
    if options.out:
        record.write(options.out, here, {"mask_us": masks, "step_s": steps})


if __name__ == "__main__":
    main()
