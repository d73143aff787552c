"""What one step of a model of SmolLM2-135M's size takes in the native decoder, and where the time goes: random weights, no server.

    python -m benchmarks.native_step --threads 2 --weights float16

Prints a table: milliseconds of the fastest of several steps, its matrix products (the head among them), attention and the rest.
Weights' bytes over the time of a single token's step are beside the rate at which this machine reads memory.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from benchmarks import machine
from pagemill_kernels.native.attention import step_layout
from pagemill_kernels.native.decoder import DecoderLayer, DecoderShape, LayerCaches, NativeDecoder, Rotary
from pagemill_kernels.native.matrix import Matrix, Pool

SHAPE = DecoderShape(hidden=576, heads=9, kv_heads=3, head_dim=64, vocab=49152, eps=1e-5)
INNER, LAYERS, BLOCK = 1536, 30, 32
TYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True, slots=True)
class Step:
    """So many sequences with so many new tokens each behind a context."""

    sequences: int
    tokens: int
    context: int

    @property
    def sampled(self) -> int:
        return self.sequences


STEPS = (
    Step(1, 1, 200),
    Step(1, 1, 8000),
    Step(4, 1, 200),
    Step(8, 1, 200),
    Step(16, 1, 200),
    Step(1, 128, 0),
    Step(1, 512, 0),
    Step(1, 512, 3584),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one step, the head of each sequence's last row included."""

    total: float
    products: float
    attention: float
    rest: float


def make_decoder(pool: Pool, weights: torch.dtype, arithmetic: torch.dtype) -> NativeDecoder:
    """Random, every layer with matrices of its own so that they are read from memory as a real model's are."""
    generator = torch.Generator().manual_seed(0)
    given = torch.float16 if weights == torch.int8 and arithmetic == torch.float32 else weights
    given = torch.bfloat16 if arithmetic == torch.bfloat16 else given

    def matrix(out: int, size: int, paired: bool = False) -> Matrix:
        random = torch.randn(out, size, generator=generator) * size**-0.5
        return Matrix(random.to(given), None, weights, arithmetic, paired)

    hidden, dim = SHAPE.hidden, SHAPE.head_dim
    ones = torch.ones(hidden)
    angles = torch.arange(8192)[:, None] * (1e5 ** -(torch.arange(0, dim, 2) / dim))
    rotary = Rotary(angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), dim=1))
    layers = [
        DecoderLayer(
            qkv=matrix((SHAPE.heads + 2 * SHAPE.kv_heads) * dim, hidden),
            out=matrix(hidden, SHAPE.heads * dim),
            gate_up=matrix(2 * INNER, hidden, paired=True),
            down=matrix(hidden, INNER),
            input_norm=ones,
            mlp_norm=ones,
            rotary=rotary,
        )
        for _ in range(LAYERS)
    ]
    head = matrix(SHAPE.vocab, hidden)
    return NativeDecoder(pool, SHAPE, layers, ones, head, head)


def make_caches(blocks: int, dtype: torch.dtype) -> LayerCaches:
    """One allocation for all layers, block by block and from numpy as the server's is: large pages, where the system has them."""
    sides = blocks, LAYERS, 2, SHAPE.kv_heads, BLOCK, SHAPE.head_dim
    data = torch.from_numpy(np.zeros(prod(sides) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(sides)
    data = data.permute(1, 2, 3, 0, 4, 5)
    for layer in data:
        layer.normal_()
    return LayerCaches([layer[0] for layer in data], [layer[1] for layer in data])


def time_step(decoder: NativeDecoder, caches: LayerCaches, step: Step, repeats: int) -> Timing:
    """The fastest of several."""
    end = step.context + step.tokens
    blocks = -(-end // BLOCK)
    tables = torch.randperm(step.sequences * blocks).view(step.sequences, blocks)
    positions = torch.arange(step.context, end).repeat(step.sequences)
    owner = torch.arange(step.sequences).repeat_interleave(step.tokens)
    slots = tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    starts = [index * step.tokens for index in range(step.sequences + 1)]
    ids = torch.randint(0, SHAPE.vocab, (len(positions),))
    last = torch.tensor(starts[1:]) - 1
    found = []
    for _ in range(repeats):
        seconds = (ctypes.c_double * 3)()
        decoder.measure(seconds)
        begin = time.perf_counter()
        layout = step_layout(slots, starts, [end] * step.sequences, tables)
        hidden = decoder.step(ids, positions, layout, caches)
        decoder.logits(hidden.index_select(0, last))
        total = time.perf_counter() - begin
        found.append(Timing(total, seconds[0], seconds[1], total - seconds[0] - seconds[1]))
    return min(found, key=lambda timing: timing.total)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", choices=TYPES, default="float16", help="how they are stored")
    parser.add_argument("--arithmetic", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--cache", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(machine.describe().line())
    print(
        f"{options.weights} weights, {options.arithmetic} arithmetic, {options.cache} cache, {options.threads} threads"
    )
    decoder = make_decoder(Pool(options.threads), TYPES[options.weights], TYPES[options.arithmetic])
    longest = max(step.sequences * -(-(step.context + step.tokens) // BLOCK) for step in STEPS)
    caches = make_caches(longest, TYPES[options.cache])
    print("| sequences x tokens at context | ms | products | attention | rest | tokens/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for step in STEPS:
        repeats = options.repeats if step.tokens == 1 else max(3, options.repeats // 4)
        timing = time_step(decoder, caches, step, repeats)
        shares = " | ".join(
            f"{1e3 * part:.2f} ({part / timing.total:.0%})" for part in (timing.products, timing.attention, timing.rest)
        )
        rate = step.sequences * step.tokens / timing.total
        print(
            f"| {step.sequences} x {step.tokens} at {step.context} | {1e3 * timing.total:.2f} | {shares} | {rate:.0f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
