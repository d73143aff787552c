"""The standard workloads, made from a seed and a tokenizer: who asks what, when, and for how many tokens.

    python benchmarks/workloads.py MODEL FOLDER     writes w1.json … for any client

A workload has several variants: the same lengths and arrivals with other text. Repetition k replays variant k, so that a
server with a prefix cache never meets a prompt twice by accident. Replayed by `serve.py`; the file format is `workload_file`'s.

    w1      64 requests, 16 at a time, 18 to 512 tokens in (mean 142), 64 out, no streaming
    w2      one at a time, 128 tokens in, 128 out, streaming: 4 requests
    w3      32 requests, 8 at a time, the same 400 tokens and 30 of its own in, 32 out, streaming
    w4      Poisson arrivals, 2 a second for 60 s, 50 to 150 tokens in, 24 to 72 out, streaming
    w4half  the same at 1 a second
    w5      256 sentences of 20 tokens, 16 a request, 4 requests at a time: vectors, for an embedding model (`speed` only)
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal, Protocol

from benchmarks import prose

SEED = 20261129
VARIANTS = 5
_STREAM_WORDS = 60_000  # more than all variants of one workload take
WARMUP = (16, 96, 16)  # requests, tokens in, tokens out


class Codec(Protocol):
    """A tokenizer, without special tokens."""

    def encode(self, text: str) -> Sequence[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. `ids` and `text` are the same tokens."""

    ids: tuple[int, ...]
    text: str
    max_tokens: int
    arrival: float = 0.0  # seconds after the start, in open workloads


@dataclass(frozen=True, slots=True)
class Workload:
    """What a client replays."""

    name: str
    kind: Literal["closed", "open"]  # closed: `concurrency` clients, each one request at a time; open: by arrival times
    stream: bool
    concurrency: int  # closed only
    warmup: tuple[Prompt, ...]
    variants: tuple[tuple[Prompt, ...], ...]


@dataclass(frozen=True, slots=True)
class Sentences:
    """What is to be made vectors of."""

    name: str
    batch: int  # sentences a request
    concurrency: int  # requests at a time
    warmup: tuple[str, ...]
    variants: tuple[tuple[str, ...], ...]


class Tokens:
    """Hands out pieces of one long token stream, none twice, each of which tokenises back to itself."""

    def __init__(self, codec: Codec, seed: str) -> None:
        self._codec, self._random, self._at = codec, random.Random(seed), 0
        self._stream: list[int] = []

    def take(self, length: int, after: Sequence[int] = ()) -> list[int]:
        """`after` and the next `length` tokens, whose text tokenises to exactly these again."""
        while True:
            if self._at + length > len(self._stream):
                self._stream = list(self._codec.encode(prose.write(self._random, _STREAM_WORDS)))
                self._at = 0
            ids = [*after, *self._stream[self._at : self._at + length]]
            self._at += 1
            if list(self._codec.encode(self._codec.decode(ids))) == ids:
                self._at += length
                return ids

    def prompt(self, ids: Sequence[int], max_tokens: int, arrival: float = 0.0) -> Prompt:
        return Prompt(tuple(ids), self._codec.decode(ids), max_tokens, arrival)


def w1(codec: Codec, seed: int) -> Workload:
    """Many at once, of the lengths that chat has."""
    lengths = lognormal_lengths(64, median=110, sigma=0.75, least=16, most=512)
    random.Random(f"{seed} order").shuffle(lengths)

    def variant(tokens: Tokens) -> list[Prompt]:
        return [tokens.prompt(tokens.take(length), 64) for length in lengths]

    return _workload("w1", codec, seed, variant, kind="closed", concurrency=16, stream=False)


def w2(codec: Codec, seed: int) -> Workload:
    """One alone: what a single stream can reach."""

    def variant(tokens: Tokens) -> list[Prompt]:
        return [tokens.prompt(tokens.take(128), 128) for _ in range(4)]

    return _workload("w2", codec, seed, variant, kind="closed", concurrency=1, stream=True)


def w3(codec: Codec, seed: int) -> Workload:
    """One long system prompt before many short questions: what prefix caching is for."""

    def variant(tokens: Tokens) -> list[Prompt]:
        shared = tokens.take(400)
        return [tokens.prompt(tokens.take(30, after=shared), 32) for _ in range(32)]

    return _workload("w3", codec, seed, variant, kind="closed", concurrency=8, stream=True)


def w4(codec: Codec, seed: int, rate: float = 2.0, seconds: float = 60.0, name: str = "w4") -> Workload:
    """Arrivals that wait for nobody."""
    random_ = random.Random(f"{seed} arrivals")
    plan: list[tuple[float, int, int]] = []  # seconds, tokens in, tokens out
    at = random_.expovariate(rate)
    while at < seconds:
        plan.append((at, random_.randint(50, 150), random_.randint(24, 72)))
        at += random_.expovariate(rate)

    def variant(tokens: Tokens) -> list[Prompt]:
        return [tokens.prompt(tokens.take(length), out, at) for at, length, out in plan]

    return _workload(name, codec, seed, variant, kind="open", concurrency=0, stream=True)


def w4half(codec: Codec, seed: int) -> Workload:
    """w4 at half the rate."""
    return w4(codec, seed, rate=1.0, name="w4half")


def w5(codec: Codec, seed: int) -> Sentences:
    """Sentences of an index: short, many, all known at once."""
    tokens = Tokens(codec, f"{seed} w5")

    def some(count: int) -> tuple[str, ...]:
        return tuple(codec.decode(tokens.take(20)) for _ in range(count))

    return Sentences("w5", 16, 4, some(64), tuple(some(256) for _ in range(VARIANTS)))


STANDARD: dict[str, Callable[[Codec, int], Workload]] = {"w1": w1, "w2": w2, "w3": w3, "w4": w4, "w4half": w4half}


def _workload(
    name: str,
    codec: Codec,
    seed: int,
    variant: Callable[[Tokens], list[Prompt]],
    *,
    kind: Literal["closed", "open"],
    concurrency: int,
    stream: bool,
) -> Workload:
    tokens = Tokens(codec, f"{seed} {name}")
    requests, length, out = WARMUP
    warmup = tuple(tokens.prompt(tokens.take(length), out) for _ in range(requests))
    variants = tuple(tuple(variant(tokens)) for _ in range(VARIANTS))
    return Workload(name, kind, stream, concurrency, warmup, variants)


def lognormal_lengths(count: int, *, median: float, sigma: float, least: int, most: int) -> list[int]:
    """The middles of `count` equal shares of a lognormal distribution: its shape without a sample's luck."""
    normal = NormalDist(math.log(median), sigma)
    shares = ((index + 0.5) / count for index in range(count))
    return [min(most, max(least, round(math.exp(normal.inv_cdf(share))))) for share in shares]


def main(argv: list[str] | None = None) -> int:
    """Write every standard workload as a file."""
    from benchmarks import codec, workload_file

    parser = argparse.ArgumentParser(description="Write the standard workloads for a model's tokenizer.")
    parser.add_argument("model", help="org/name in the models folder, or a path")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = codec.load(args.model)
    for name, make in STANDARD.items():
        workload = make(tokenizer, args.seed)
        workload_file.write(workload, args.folder / f"{name}.json")
        print(f"{name}: {describe(workload)}")
    return 0


def describe(workload: Workload) -> str:
    """Its sizes in words, of the first variant."""
    prompts = workload.variants[0]
    lengths = [len(prompt.ids) for prompt in prompts]
    out = sum(prompt.max_tokens for prompt in prompts)
    return (
        f"{len(prompts)} requests, {min(lengths)} to {max(lengths)} tokens in (mean {sum(lengths) / len(lengths):.0f}), "
        f"{out} out in all, {len(workload.variants)} variants"
    )


if __name__ == "__main__":
    sys.exit(main())
