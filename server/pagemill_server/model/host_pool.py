"""The second tier's tensor: whole blocks in host memory, taken once at the start. `engine/host_tier` says what is in which.

Filled and read by `block_copies` only. `host_blocks` says, before any model is loaded, how many fit.
"""

from __future__ import annotations

import torch

from pagemill.model_config import ModelConfig
from pagemill_server.model.kv_pool import KVPool, zeros


def host_blocks(config: ModelConfig, block_size: int, dtype_bytes: int, offloading_bytes: int) -> int:
    """How many blocks of `block_size` tokens so many bytes hold, keys and values of all layers."""
    return offloading_bytes // (block_size * config.kv_bytes_per_token(dtype_bytes))


class HostPool:
    """[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]: a block is one run of memory. Pinned beside a GPU."""

    def __init__(self, device_pool: KVPool, num_blocks: int) -> None:
        like = device_pool.data
        layers, sides, heads, _, block_size, head_dim = like.shape
        shape = (num_blocks, layers, sides, heads, block_size, head_dim)
        if like.device.type == "cuda":
            self.data = torch.empty(shape, dtype=like.dtype, pin_memory=True)
        else:
            self.data = zeros(shape, like.dtype, torch.device("cpu"))
        self.num_blocks = num_blocks
