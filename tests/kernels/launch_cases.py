"""Calls of the launchers with the shapes of models that are served: what is compiled without a GPU, and tabled.

python -m tests.kernels.launch_cases      the table of docs/kernels.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from pagemill_kernels import paged_attention, rms_norm, rotary, sampling, swiglu, write_kv
from tests.kernels.compiling import SHARED_LIMIT, Launch, compile_for, launches_of

# Model → KV heads, query heads of each, head_dim, block size, dtype. Gemma's head_dim, and float32, are the widest there are.
ATTENTION = {
    "SmolLM2-135M": (3, 3, 64, 16, torch.bfloat16),
    "Llama-2-7B": (32, 1, 128, 16, torch.bfloat16),
    "Qwen3-8B": (8, 4, 128, 32, torch.bfloat16),
    "Llama-3-70B": (8, 8, 128, 64, torch.float16),
    "Gemma-3-4B": (4, 2, 256, 16, torch.bfloat16),
    "float32": (4, 4, 64, 64, torch.float32),
}


def _attention(model: str, launcher: str, tokens: int, window: int | None) -> Callable[[], object]:
    kv_heads, group, head_dim, block_size, dtype = ATTENTION[model]

    def call() -> object:
        query = torch.empty(tokens, kv_heads * group, head_dim, dtype=dtype)
        cache = torch.empty(kv_heads, 8, block_size, head_dim, dtype=dtype)
        tables, lens = torch.empty(8, 4096 // block_size, dtype=torch.int32), torch.empty(8, dtype=torch.int32)
        if launcher == "decode":
            return paged_attention.decode(query, cache, cache, tables, lens, window=window)
        starts = torch.empty(9, dtype=torch.int32)
        return paged_attention.chunks(query, cache, cache, tables, starts, lens, window=window)

    return call


def _bf16(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def _sample() -> object:
    row = torch.empty(4)
    return sampling.top_k_top_p(torch.empty(4, 151936), row, row.int(), row, row, row)


def _write() -> None:
    caches = _bf16(8, 8, 32, 128), _bf16(8, 8, 32, 128)
    write_kv.write_kv(*caches, _bf16(8, 8, 128), _bf16(8, 8, 128), torch.empty(8, dtype=torch.int64))


CALLS: dict[str, Callable[[], object]] = {
    **{f"decode, {model}": _attention(model, "decode", 8, None) for model in ATTENTION},
    **{f"chunks, {model}": _attention(model, "chunks", 2048, None) for model in ATTENTION},
    "chunks with a window, Qwen3-8B": _attention("Qwen3-8B", "chunks", 2048, 1024),
    "short chunks, Qwen3-8B": _attention("Qwen3-8B", "chunks", 16, None),
    "rms_norm, 4096": lambda: rms_norm.rms_norm(_bf16(8, 4096), _bf16(4096), 1e-5),
    "rms_norm of heads, 128": lambda: rms_norm.rms_norm(_bf16(8, 48, 128)[:, :32], _bf16(128), 1e-5),
    "add_rms_norm, 576": lambda: rms_norm.add_rms_norm(_bf16(8, 576), _bf16(8, 576), _bf16(576), 1e-5),
    "rotary, 40 heads of 128": lambda: rotary.rotary(_bf16(8, 48, 128)[:, :40], _bf16(8, 128), _bf16(8, 128)),
    "swiglu, 12288": lambda: swiglu.swiglu(_bf16(8, 24576)),
    "write_kv, 8 heads of 128": _write,
    "top_k_top_p, 151936": _sample,
}


def launches(name: str) -> list[Launch]:
    """What a case launches."""
    return launches_of(CALLS[name])


def _table() -> None:
    heads = " | ".join(f"sm_{capability}" for capability in SHARED_LIMIT)
    sys.stdout.write(f"| call | kernel | {heads} |\n| --- | --- | {' | '.join('---' for _ in SHARED_LIMIT)} |\n")
    for name in CALLS:
        for launch in launches(name):
            taken = [compile_for(launch, capability) for capability in SHARED_LIMIT]
            cells = [f"{t.registers} / {t.spilled} / {t.shared / 1024:.1f} / {t.blocks}" for t in taken]
            sys.stdout.write(f"| {name} | `{launch.kernel.__name__}` | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    _table()
