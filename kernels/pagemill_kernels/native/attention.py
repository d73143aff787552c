"""Attention over the paged cache by the native library: torch tensors in, torch tensors out.

`reference.paged_attention` is its specification. A query's result follows from its position and keys alone, to the last bit: not
from block size, chunks, company or threads. A block's tail is not zeroed: what a sequence has not written is never read. Called by
the server's attention backend, and, for its layout, by `decoder`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagemill_kernels.native.library import loaded
from pagemill_kernels.native.matrix import Pool

_CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1}  # native.h's Type
NO_MEMORY = -3


class LayoutFields(ctypes.Structure):
    """native.h's Layout."""

    _fields_ = [
        ("tokens", ctypes.c_int),
        ("sequences", ctypes.c_int),
        ("slots", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("table_stride", ctypes.c_int),
    ]


class CacheFields(ctypes.Structure):
    """native.h's Cache."""

    _fields_ = [
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("head_stride", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("block_size", ctypes.c_int),
        ("type", ctypes.c_int),
    ]


class _HeadFields(ctypes.Structure):
    """native.h's Heads."""

    _fields_ = [
        ("heads", ctypes.c_int),
        ("kv_heads", ctypes.c_int),
        ("head_dim", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("window", ctypes.c_int),
    ]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """One step's layout, the same for every layer. T tokens, S sequences."""

    slots: torch.Tensor  # int64 [T]: block * block_size + offset of each token
    query_start: torch.Tensor  # int32 [S + 1]: sequence i's tokens are rows query_start[i] .. query_start[i + 1]
    seq_lens: torch.Tensor  # int32 [S]: tokens in the cache after this step
    block_tables: torch.Tensor  # int64 [S, most blocks of any sequence]
    fields: LayoutFields  # pointers into the above


def step_layout(
    slots: torch.Tensor, query_start: Sequence[int], seq_lens: Sequence[int], block_tables: torch.Tensor
) -> StepLayout:
    """From what the scheduler's step says (the server's AttentionMetadata); ValueError where the parts do not fit."""
    check(slots, torch.int64, (query_start[-1],), "slots")
    check(block_tables, torch.int64, (len(seq_lens), block_tables.shape[-1]), "block_tables")
    if len(query_start) != len(seq_lens) + 1:
        raise ValueError(f"query_start has {len(query_start)} entries for {len(seq_lens)} sequences")
    starts, lens = (torch.from_numpy(np.array(numbers, dtype=np.int32)) for numbers in (query_start, seq_lens))
    fields = LayoutFields(
        query_start[-1],
        len(seq_lens),
        slots.data_ptr(),
        starts.data_ptr(),
        lens.data_ptr(),
        block_tables.data_ptr(),
        block_tables.shape[1],
    )
    return StepLayout(slots, starts, lens, block_tables, fields)


def cache_fields(keys: torch.Tensor, values: torch.Tensor) -> CacheFields:
    """One layer's cache, float32 or bfloat16 [kv_heads, blocks, block_size, head_dim], each head's part of a block contiguous."""
    if keys.dtype not in _CACHE_TYPES:
        raise ValueError(f"a cache of {keys.dtype}: float32 and bfloat16 are possible")
    for cache in (keys, values):
        check(cache[0, 0], keys.dtype, tuple(keys.shape[2:]), "cache")
    if keys.shape != values.shape or keys.stride() != values.stride():
        raise ValueError("keys and values are laid out differently")
    to_head, to_block = keys.stride()[:2]
    return CacheFields(keys.data_ptr(), values.data_ptr(), to_head, to_block, keys.shape[2], _CACHE_TYPES[keys.dtype])


def attend(
    pool: Pool,
    layout: StepLayout,
    key_cache: torch.Tensor,  # [kv_heads, blocks, block_size, head_dim], float32 or bfloat16; written
    value_cache: torch.Tensor,
    query: torch.Tensor,  # float32 [T, heads, head_dim]; head_dim a multiple of 16, up to 256
    key: torch.Tensor,  # float32 [T, kv_heads, head_dim]
    value: torch.Tensor,
    window: int | None = None,  # keys that a query sees, its own included; None: all up to its own
    scale: float | None = None,  # of the scores; None: 1/sqrt(head_dim)
) -> torch.Tensor:  # as query
    """Write the step's keys and values into their slots, then attend, causally and grouped, over each sequence's."""
    tokens, heads, head_dim = query.shape
    kv_heads = key_cache.shape[0]
    check_heads(heads, kv_heads, head_dim, window)
    check(query, torch.float32, (layout.fields.tokens, heads, head_dim), "query")
    for new, name in ((key, "key"), (value, "value")):
        check(new, torch.float32, (tokens, kv_heads, head_dim), name)
    if key_cache.shape[3] != head_dim:
        raise ValueError(f"head_dim is {head_dim}, the cache's {key_cache.shape[3]}")
    fields = _HeadFields(heads, kv_heads, head_dim, head_dim**-0.5 if scale is None else scale, window or 0)
    cache = cache_fields(key_cache, value_cache)
    out = torch.empty_like(query)
    code = loaded().pm_attention(
        pool.handle,
        ctypes.addressof(layout.fields),
        ctypes.addressof(fields),
        ctypes.addressof(cache),
        *(tensor.data_ptr() for tensor in (query, key, value, out)),
    )
    if code == NO_MEMORY:
        raise MemoryError("no memory for attention's workspace")
    return out


def check_heads(heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
    """ValueError for what the library has no code for."""
    if head_dim % 16 != 0 or not 0 < head_dim <= 256:
        raise ValueError(f"head_dim {head_dim}: multiples of 16 up to 256 are possible")
    if kv_heads <= 0 or heads % kv_heads != 0:
        raise ValueError(f"{heads} query heads do not divide over {kv_heads} key-value heads")
    if window is not None and window <= 0:
        raise ValueError(f"a window of {window} tokens")


def check(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], name: str) -> None:
    """ValueError unless the library may read the tensor through a pointer as what it is taken for."""
    if tensor.dtype != dtype or tensor.device.type != "cpu" or tuple(tensor.shape) != shape:
        found = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name} is {found}; {dtype} {shape} on cpu is wanted")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous")
