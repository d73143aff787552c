"""The KV tensors: one paged pool, taken once at the start. The only place where keys and values live on the device.

Which block belongs to whom is `engine/kv_cache`'s business; here are only tensors. Read and written by the attention backends;
`block_copies` takes whole blocks out to the host tier and back.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch


class KVPool:
    """Keys and values of every layer: [num_kv_heads, num_blocks + 1, block_size, head_dim] each.

    They are views of `data` [num_layers, 2, num_kv_heads, num_blocks + 1, block_size, head_dim], where a block of all layers is
    one slice. In memory heads come first, so that gathering blocks gives each head one contiguous run of tokens; with `by_block`
    blocks do, for kernels that read them where they lie: a block of all layers is one run then, so that what was written last
    takes up a few huge pages and not one of every head in every layer. The block after the last (`null_block`) belongs to nobody
    and stays zero: attention reads it where a sequence has no block.

    No slot that attention may read ever holds another sequence's remains: a block's tail is zeroed when its first slot is
    written (`write`), so that masked slots are zeros and not an earlier sequence's NaN. That needs no block to be written by one
    sequence where another began it: shared blocks are full ones, and a sequence begins after them with a block of its own.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        by_block: bool = False,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.null_block = num_blocks
        blocks, heads, slots = num_blocks + 1, (num_layers, 2, num_kv_heads), (block_size, head_dim)
        if by_block:
            self.data = zeros((blocks, *heads, *slots), dtype, device).permute(1, 2, 3, 0, 4, 5)
        else:
            self.data = zeros((*heads, blocks, *slots), dtype, device)
        self.keys = tuple(layer[0] for layer in self.data)
        self.values = tuple(layer[1] for layer in self.data)

    def write(
        self,
        layer: int,
        key: torch.Tensor,  # [T, num_kv_heads, head_dim]
        value: torch.Tensor,
        slots: torch.Tensor,  # int64 [T]
        fresh_blocks: torch.Tensor | None,  # int64: blocks begun but not filled by this write; zeroed first
    ) -> None:
        """Put each token's key and value of one layer into its slot. Of a pool whose heads come first."""
        for cache, new in ((self.keys[layer], key), (self.values[layer], value)):
            if fresh_blocks is not None:
                cache.index_fill_(1, fresh_blocks, 0.0)
            heads, _, _, head_dim = cache.shape
            cache.view(heads, -1, head_dim).index_copy_(1, slots, new.transpose(0, 1))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On CPU from numpy, which asks the system for zeroed pages; torch writes them all, which takes seconds for a large pool."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
