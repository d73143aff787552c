"""How near each kernel comes to what the GPU at hand can do: GB/s over its copy bandwidth, TFLOP/s over its matrix product's.

    python -m benchmarks.kernels_gpu [--repeats 50] [--out benchmarks/results/kernels-gpu.json]

Both ceilings are measured in the same run. Before each launch a buffer larger than the second-level cache is written, so that
inputs come from memory; a time is the median over the repeats, by CUDA events. Without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import machine, record

_FLUSH = 256 * 1024**2  # bytes; the largest second-level cache of these GPUs has 126 MiB
_DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Work:
    """What a call must at least do."""

    name: str
    call: Callable[[], object]
    bytes: int  # read and written, each once
    flop: int  # 0: nothing to speak of


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel's row."""

    name: str
    seconds: float
    gb_per_s: float
    of_copy: float  # share of the copy bandwidth
    tflop_per_s: float
    of_matmul: float  # share of the matrix product's rate


def attention_bytes(query: torch.Tensor, kv_heads: int, lens: list[int]) -> int:
    """Keys and values of these lengths once, queries in and results out. query [T, H, D]."""
    return query.element_size() * (2 * kv_heads * query.shape[2] * sum(lens) + 2 * query.numel())


def attention_flop(heads: int, head_dim: int, lens: list[int], chunks: list[int]) -> int:
    """Of both products, over the keys that each query sees: chunks are each sequence's newest tokens."""
    seen = sum(chunk * length - chunk * (chunk - 1) // 2 for length, chunk in zip(lens, chunks, strict=True))
    return 4 * heads * head_dim * seen


def figure(work: Work, seconds: float, copy: float, matmul: float) -> Figure:
    """A time against the ceilings in bytes and FLOP a second."""
    gb_per_s, tflop_per_s = work.bytes / seconds, work.flop / seconds
    return Figure(work.name, seconds, gb_per_s / 1e9, gb_per_s / copy, tflop_per_s / 1e12, tflop_per_s / matmul)


def measure(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of the call on the device."""
    flush = torch.empty(_FLUSH, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    times: list[float] = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in "be")  # type: ignore[no-untyped-call]
        flush.zero_()  # takes long enough for the launch to be queued behind it
        began.record()
        call()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


def ceilings(repeats: int) -> tuple[float, float]:
    """Bytes a second of a copy (read and written), FLOP a second of a product of matrices in bfloat16."""
    source = torch.empty(1024**3, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / measure(lambda: target.copy_(source), repeats)
    size = 8192
    left, right = (torch.randn(size, size, dtype=_DTYPE, device="cuda") for _ in "lr")
    product = torch.empty_like(left)
    matmul = 2 * size**3 / measure(lambda: torch.mm(left, right, out=product), repeats)
    return copy, matmul


def works() -> Iterator[Work]:
    """Every kernel at sizes of steps that a server runs, one at a time in memory."""
    yield from _row_works()
    models = {"Llama-2-7B": (32, 32, 16), "Qwen3-8B": (8, 32, 32)}
    for model, (kv_heads, heads, block_size) in models.items():
        for sequences, length in ((1, 8192), (8, 4096), (32, 1024), (32, 4096), (128, 1024)):
            yield _decode_work(model, kv_heads, heads, block_size, [length] * sequences)
        for length, chunk, sequences in ((2048, 2048, 1), (4096, 256, 8)):
            yield _chunks_work(model, kv_heads, heads, block_size, [length] * sequences, [chunk] * sequences)
    yield from _sampling_works()


def _row_works() -> Iterator[Work]:
    from pagemill_kernels import rms_norm, rotary, swiglu, write_kv

    tokens, hidden, inner, heads, kv_heads, head_dim = 8192, 4096, 12288, 32, 8, 128
    x, other, weight = _random(tokens, hidden), _random(tokens, hidden), _random(hidden)
    row = tokens * hidden * x.element_size()
    yield Work(f"rms_norm [{tokens}, {hidden}]", lambda: rms_norm.rms_norm(x, weight, 1e-5), 2 * row, 0)
    yield Work(f"add_rms_norm [{tokens}, {hidden}]", lambda: rms_norm.add_rms_norm(x, other, weight, 1e-5), 4 * row, 0)
    gate_up = _random(tokens, 2 * inner)
    size = gate_up.numel() * gate_up.element_size()
    yield Work(f"swiglu [{tokens}, {2 * inner}]", lambda: swiglu.swiglu(gate_up), size * 3 // 2, 0)
    turned, cos, sin = _random(tokens, heads + kv_heads, head_dim), _random(tokens, head_dim), _random(tokens, head_dim)
    size = 2 * (turned.numel() + cos.numel()) * turned.element_size()
    yield Work(f"rotary {list(turned.shape)}", lambda: rotary.rotary(turned, cos, sin), size, 0)
    keys, values, _ = _cache(kv_heads, head_dim, 32, [tokens])
    new, slots = _random(tokens, kv_heads, head_dim), torch.arange(tokens, device="cuda")
    size = 4 * new.numel() * new.element_size()
    yield Work(f"write_kv {list(new.shape)}", lambda: write_kv.write_kv(keys, values, new, new, slots), size, 0)


def _decode_work(model: str, kv_heads: int, heads: int, block_size: int, lens: list[int]) -> Work:
    from pagemill_kernels.paged_attention import decode

    keys, values, tables = _cache(kv_heads, 128, block_size, lens)
    query, seq_lens = _random(len(lens), heads, 128), torch.tensor(lens, dtype=torch.int32, device="cuda")
    flop = attention_flop(heads, 128, lens, [1] * len(lens))
    name = f"decode {model}, {len(lens)} x {lens[0]}"
    call = lambda: decode(query, keys, values, tables, seq_lens)  # noqa: E731
    return Work(name, call, attention_bytes(query, kv_heads, lens), flop)


def _chunks_work(model: str, kv_heads: int, heads: int, block_size: int, lens: list[int], sizes: list[int]) -> Work:
    from pagemill_kernels.paged_attention import chunks

    keys, values, tables = _cache(kv_heads, 128, block_size, lens)
    query, seq_lens = _random(sum(sizes), heads, 128), torch.tensor(lens, dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, *sizes], device="cuda").cumsum(0).int()
    name = f"chunks {model}, {len(lens)} x {sizes[0]} of {lens[0]}"
    call = lambda: chunks(query, keys, values, tables, starts, seq_lens)  # noqa: E731
    return Work(name, call, attention_bytes(query, kv_heads, lens), attention_flop(heads, 128, lens, sizes))


def _sampling_works() -> Iterator[Work]:
    from pagemill_kernels.sampling import top_k_top_p

    vocab_size = 151936
    for rows in (32, 128):
        logits, numbers = torch.randn(rows, vocab_size, device="cuda") * 3, torch.rand(rows, device="cuda")
        ones = torch.ones(rows, device="cuda")
        settings = {
            "greedy": (0.0, 0, 1.0),
            "all": (1.0, 0, 1.0),
            "top_k 50": (1.0, 50, 1.0),
            "top_p 0.9": (1.0, 0, 0.9),
        }
        for name, (temperature, top_k, top_p) in settings.items():
            values = ones * temperature, (ones * top_k).int(), ones * top_p, ones * 0, numbers
            call = lambda logits=logits, values=values: top_k_top_p(logits, *values)  # noqa: E731
            yield Work(f"top_k_top_p {name} [{rows}, {vocab_size}]", call, logits.numel() * logits.element_size(), 0)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=_DTYPE, device="cuda")


def _cache(
    kv_heads: int, head_dim: int, block_size: int, lens: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values, and a table of blocks that lie anywhere."""
    each = -(-max(lens) // block_size)
    count = each * len(lens)
    keys, values = (_random(kv_heads, count, block_size, head_dim) for _ in "kv")
    return keys, values, torch.randperm(count, device="cuda").view(len(lens), each).int()


def report(figures: list[Figure]) -> str:
    """Markdown."""
    headings = ["kernel", "us", "GB/s", "of copy", "TFLOP/s", "of matmul"]
    rows = [
        [f.name, f"{f.seconds * 1e6:.1f}", f"{f.gb_per_s:.0f}", f"{f.of_copy:.0%}"]
        + ([f"{f.tflop_per_s:.1f}", f"{f.of_matmul:.0%}"] if f.tflop_per_s else ["-", "-"])
        for f in figures
    ]
    return record.table(headings, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.kernels_gpu needs a CUDA device and PyPI's torch with triton", file=sys.stderr)
        raise SystemExit(2)
    gpu, here = torch.cuda.get_device_name(), machine.describe()
    print(f"{gpu}, CUDA {torch.version.cuda}; {here.line()}")
    copy, matmul = ceilings(options.repeats)
    print(f"ceilings: copy {copy / 1e9:.0f} GB/s, matmul {matmul / 1e12:.0f} TFLOP/s in bfloat16\n")
    figures = [figure(work, measure(work.call, options.repeats), copy, matmul) for work in works()]
    print(report(figures))
    if options.out:
        body = {"gpu": gpu, "cuda": torch.version.cuda, "copy_bytes_per_s": copy, "matmul_flop_per_s": matmul}
        record.write(options.out, here, {**body, "kernels": [asdict(f) for f in figures]})


if __name__ == "__main__":
    main()
