"""What the native matrix products take at SmolLM2-135M's shapes, beside torch's, and beside what this machine can do at most.

    python -m benchmarks.native_matrix --threads 2

Prints a table: the fastest of many runs, weights cold (copies are taken in turn, 96 MB of them), as microseconds, GB/s of weights
read and GFLOP/s. The ceilings are the rate of reading 512 MB and torch's largest float32 product.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from benchmarks import machine
from pagemill_kernels.native import library
from pagemill_kernels.native.matrix import Matrix, Pool

SHAPES = {"qkv": (960, 576), "out": (576, 576), "gate and up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
ROWS = (1, 4, 8, 16, 64, 256, 512)
LARGEST_HEAD = 64  # rows of the head that a server computes, about
COLD_BYTES = 96 << 20
# stored, arithmetic
KINDS = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.int8, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.int8, torch.bfloat16),
)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a shape: `run` takes x float32 [rows, in]."""

    name: str
    bytes: int  # of one copy of the weight
    run: Callable[[torch.Tensor], torch.Tensor]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    asked = parser.parse_args(arguments)
    if library.load() is None:
        sys.exit("the native kernels are not built for this processor")
    torch.set_num_threads(asked.threads)
    pool = Pool(asked.threads)
    print(machine.describe().line())
    print(f"{asked.threads} threads; reading {read_rate(asked.threads):.1f} GB/s; ", end="")
    print(f"torch's float32 product {product_rate():.0f} GFLOP/s\n")
    print(f"{'shape':<12} {'weights':<22} {'rows':>4} {'us':>9} {'GB/s':>7} {'GFLOP/s':>8}")
    for name in asked.shapes:
        out, inputs = SHAPES[name]
        for way in ways(out, inputs, pool):
            for rows in ROWS:
                if name != "head" or rows <= LARGEST_HEAD:
                    took = fastest(way, torch.randn(rows, inputs), asked.seconds)
                    gflops = 2 * rows * out * inputs / took / 1e9
                    print(
                        f"{name:<12} {way.name:<22} {rows:>4} {took * 1e6:>9.1f} {way.bytes / took / 1e9:>7.1f} {gflops:>8.0f}"
                    )


def ways(out: int, inputs: int, pool: Pool) -> Iterator[Way]:
    """Ours in every type, then torch's; only one way's weights are in memory at a time."""
    weight = torch.randn(out, inputs) / inputs**0.5
    for stored, arithmetic in KINDS:
        yield ours(weight, stored, arithmetic, pool)
    for dtype in (torch.float32, torch.bfloat16):
        yield torchs(weight, dtype)
    if torch._C._has_mkldnn:
        yield prepacked(weight)


def ours(weight: torch.Tensor, stored: torch.dtype, arithmetic: torch.dtype, pool: Pool) -> Way:
    first = Matrix(weight, None, stored, arithmetic)
    copies = [first, *(Matrix(weight, None, stored, arithmetic) for _ in range(spare(first.bytes)))]
    in_turn = itertools.cycle(copies)
    return Way(f"{_name(stored)} x {_name(arithmetic)}", first.bytes, lambda x: next(in_turn).linear(pool, x))


def torchs(weight: torch.Tensor, dtype: torch.dtype) -> Way:
    size = weight.numel() * dtype.itemsize
    in_turn = itertools.cycle([weight.to(dtype, copy=True) for _ in range(1 + spare(size))])
    return Way(f"torch {_name(dtype)}", size, lambda x: functional.linear(x.to(dtype), next(in_turn)))


def prepacked(weight: torch.Tensor) -> Way:
    """oneDNN's float32."""
    copies = [torch.ops.mkldnn._reorder_linear_weight(weight, 16) for _ in range(1 + spare(weight.nbytes))]
    in_turn = itertools.cycle(copies)

    def run(x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, next(in_turn), None, "none", [], "")
        return product

    return Way("torch float32 packed", weight.nbytes, run)


def fastest(way: Way, x: torch.Tensor, seconds: float) -> float:
    """Seconds of the fastest run: neighbours on the machine slow most of them."""
    best, until = float("inf"), time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        way.run(x)
        best = min(best, time.perf_counter() - began)
    return best


def spare(size: int) -> int:
    """Copies beside the first, so that none is still in a cache when its turn comes."""
    return COLD_BYTES // size


def read_rate(threads: int) -> float:
    """GB/s of reading 512 MB, the fastest of several times."""
    memory = np.ones(512 << 17, dtype=np.float32)
    parts = np.array_split(memory, threads)

    def once() -> float:
        workers = [threading.Thread(target=np.max, args=(part,)) for part in parts]  # numpy lets the lock go
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - began

    return float(memory.nbytes / min(once() for _ in range(8)) / 1e9)


def product_rate() -> float:
    """GFLOP/s of torch's float32 product of 1024 rows."""
    weight = torch.randn(1024, 1024)
    took = fastest(Way("", 0, lambda x: functional.linear(x, weight)), torch.randn(1024, 1024), 1.0)
    return 2 * 1024**3 / took / 1e9


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main(sys.argv[1:])
