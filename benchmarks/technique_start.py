"""What taking the KV pool at the start costs: seconds, and memory that is really touched, lazily and written through.

A part of `memory_techniques`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagemill.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class PoolStart:
    """One pool, made and dropped again."""

    way: str
    size_bytes: int
    seconds: float
    touched_bytes: int  # resident memory that it added


def measure(config: ModelConfig, tokens: int, block_size: int = 32) -> list[PoolStart]:
    """As the server takes it (zeroed pages that the system gives when they are first written), and as torch.zeros does."""
    import torch

    from pagemill_server.model.kv_pool import KVPool

    shape = (
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.head_dim,
        -(-tokens // block_size),
        block_size,
    )
    size = tokens * config.kv_bytes_per_token(4)
    return [
        _taken("as the server does", size, lambda: KVPool(*shape, torch.float32, torch.device("cpu"))),
        _taken("torch.zeros", size, lambda: torch.zeros(size, dtype=torch.uint8)),
        _taken("every page written", size, lambda: torch.ones(size, dtype=torch.uint8)),
    ]


def _taken(way: str, size: int, make: Callable[[], object]) -> PoolStart:
    before = resident()
    began = time.perf_counter()
    held = make()
    seconds = time.perf_counter() - began
    touched = resident() - before
    del held
    return PoolStart(way, size, seconds, max(0, touched))


def resident() -> int:
    """Bytes of anonymous memory that this process holds; 0 where the system doesn't tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
