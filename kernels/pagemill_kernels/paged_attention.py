"""Attention over the paged cache in Triton: `decode`, one token a sequence, and `chunks`, any number of them. Both are specified by
`reference.paged_attention`.

Keys and values are read through the block table, tile by tile, with a running softmax (https://arxiv.org/abs/2205.14135). The query
heads that share a KV head are rows of one matrix product, so the cache is read once for all of them. Decoding has too few rows
to fill a GPU: each sequence's keys are split, and a second kernel merges the splits (https://pytorch.org/blog/flash-decoding).
How many splits follows from shapes alone, so a captured graph serves any lengths; how long they are, from the sequence's own.
"""

# A kernel's parameters have Triton's types, which mypy doesn't know; its constants are in capitals.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagemill_kernels.attention_tile import attend_tile, chunks_tiling, decode_tiling
from pagemill_kernels.launch import ceil_div, pad, processors

_SHORTEST_SPLIT = 128  # tokens; shorter ones cost more to merge than they save
_MOST_SPLITS = 64
_LOG2_E = 1.4426950408889634  # scores are in base 2: the device's exponential is


@triton.jit
def _decode(
    query,
    query_token,  # strides
    query_head,
    key_cache,
    key_head,
    key_block,
    key_token,
    value_cache,
    value_head,
    value_block,
    value_token,
    block_tables,
    block_tables_sequence,
    seq_lens,
    out,  # [S, H, SIZE], or with splits float32 [S, H, splits, SIZE]
    out_sequence,
    out_head,
    log_sums,  # float32 [S, H, splits]: base-2 logarithm of a split's sum, -inf for an empty one; unused where there is one
    splits,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
):
    sequence, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    head = kv_head * GROUP + row
    length = tl.load(seq_lens + sequence).to(tl.int32)
    first, last = length * 0, length
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    if SPLIT:
        each = tl.cdiv(tl.cdiv(length - first, splits), TILE) * TILE
        first = first + split * each
        last = tl.minimum(first + each, length)
    place = (sequence * HEADS + head) * splits + split
    if SPLIT:  # noqa: SIM102 -- one is known when it is compiled, the other isn't
        if first >= last:
            tl.store(log_sums + place, tl.full([ROWS], float("-inf"), tl.float32), mask=row < GROUP)
            return
    inside = (row < GROUP)[:, None] & (column < SIZE)[None, :]
    rows = tl.load(
        query + sequence * query_token + head[:, None] * query_head + column[None, :], mask=inside, other=0.0
    )
    keys, values = key_cache + kv_head * key_head, value_cache + kv_head * value_head
    table = block_tables + sequence * block_tables_sequence
    position = tl.zeros([ROWS], tl.int32) + last
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    whole = first + (last - first) // TILE * TILE
    for start in range(first, whole, TILE):
        total, norm, top = attend_tile(
            rows, keys, key_block, key_token, values, value_block, value_token, table, start, last, position,
            total, norm, top, scale, SIZE, BLOCK, TILE, BLOCK_SIZE, 0, False,
        )  # fmt: skip
    for start in tl.range(whole, last, TILE, num_stages=1):  # once at most
        total, norm, top = attend_tile(
            rows, keys, key_block, key_token, values, value_block, value_token, table, start, last, position,
            total, norm, top, scale, SIZE, BLOCK, TILE, BLOCK_SIZE, 0, True,
        )  # fmt: skip
    done = total / tl.where(norm > 0, norm, 1.0)[:, None]
    if SPLIT:
        tl.store(log_sums + place, top + tl.log2(norm), mask=row < GROUP)
        tl.store(out + place[:, None] * SIZE + column[None, :], done, mask=inside)
    else:
        target = out + sequence * out_sequence + head[:, None] * out_head + column[None, :]
        tl.store(target, done.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _merge(
    partial,
    log_sums,
    out,
    out_sequence,
    out_head,
    splits,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, column = tl.arange(0, SPLITS), tl.arange(0, BLOCK)
    place = (sequence * HEADS + head) * splits + split
    log_sum = tl.load(log_sums + place, mask=split < splits, other=float("-inf"))
    top = tl.max(log_sum, axis=0)
    weight = tl.exp2(log_sum - tl.where(top == float("-inf"), 0.0, top))
    inside = (log_sum > float("-inf"))[:, None] & (column < SIZE)[None, :]
    parts = tl.load(partial + place[:, None] * SIZE + column[None, :], mask=inside, other=0.0)
    norm = tl.sum(weight, axis=0)
    done = tl.sum(parts * weight[:, None], axis=0) / tl.where(norm > 0, norm, 1.0)
    target = out + sequence * out_sequence + head * out_head + column
    tl.store(target, done.to(out.dtype.element_ty), mask=column < SIZE)


@triton.jit
def _chunks(
    query,
    query_token,  # strides
    query_head,
    key_cache,
    key_head,
    key_block,
    key_token,
    value_cache,
    value_head,
    value_block,
    value_token,
    block_tables,
    block_tables_sequence,
    query_start,
    seq_lens,
    out,
    out_token,
    out_head,
    sequences,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,  # of the chunk, a program: ROWS // GROUP
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED_STAGES: tl.constexpr,  # 1 where few tiles are masked: pipelining them would only take registers
):
    # The last programs first: a chunk's end sees most and takes longest.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    # Sequence i has the programs from query_start[i] // TOKENS + i on: at least as many as it needs, whatever its length.
    low, high = program * 0, program * 0 + sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TOKENS + middle <= program:
            low = middle
        else:
            high = middle
    chunk_start = tl.load(query_start + low)
    chunk = tl.load(query_start + low + 1) - chunk_start
    begin = (program - (chunk_start // TOKENS + low)) * TOKENS
    if begin >= chunk:
        return
    length = tl.load(seq_lens + low).to(tl.int32)
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inner = begin + row // GROUP  # the row's token in its chunk
    is_row = (row < TOKENS * GROUP) & (inner < chunk)
    head = kv_head * GROUP + row % GROUP
    token = (chunk_start + inner).to(tl.int64)
    inside = is_row[:, None] & (column < SIZE)[None, :]
    source = query + token[:, None] * query_token + head[:, None] * query_head + column[None, :]
    rows = tl.load(source, mask=inside, other=0.0)
    keys, values = key_cache + kv_head * key_head, value_cache + kv_head * value_head
    table = block_tables + low.to(tl.int64) * block_tables_sequence
    nearest = length - chunk + begin  # the first row's position
    position = nearest + row // GROUP
    last = tl.minimum(nearest + TOKENS, length)
    first = nearest * 0
    whole = (nearest + 1) // TILE * TILE  # before it every row sees all
    if WINDOW > 0:
        first = tl.maximum(nearest - WINDOW + 1, 0)
        whole = first
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    for start in range(first, whole, TILE):
        total, norm, top = attend_tile(
            rows, keys, key_block, key_token, values, value_block, value_token, table, start, last, position,
            total, norm, top, scale, SIZE, BLOCK, TILE, BLOCK_SIZE, WINDOW, False,
        )  # fmt: skip
    for start in tl.range(whole, last, TILE, num_stages=MASKED_STAGES):
        total, norm, top = attend_tile(
            rows, keys, key_block, key_token, values, value_block, value_token, table, start, last, position,
            total, norm, top, scale, SIZE, BLOCK, TILE, BLOCK_SIZE, WINDOW, True,
        )  # fmt: skip
    done = total / tl.where(norm > 0, norm, 1.0)[:, None]
    target = out + token[:, None] * out_token + head[:, None] * out_head + column[None, :]
    tl.store(target, done.to(out.dtype.element_ty), mask=inside)


def _splits(sequences: int, kv_heads: int, most_tokens: int, window: int | None, device: torch.device) -> int:
    """Splits of each sequence: as many as fill the device twice, none shorter than is worth it."""
    keys = most_tokens if window is None else min(window, most_tokens)
    filled = ceil_div(2 * processors(device), max(1, sequences * kv_heads))
    return max(1, min(filled, ceil_div(keys, _SHORTEST_SPLIT), _MOST_SPLITS))


def decode_workspace(
    query: torch.Tensor, key_cache: torch.Tensor, block_tables: torch.Tensor, window: int | None = None
) -> int:
    """Elements of float32 that `decode` needs for these shapes; 0 where nothing is split."""
    sequences, heads, size = query.shape
    most_tokens = block_tables.shape[1] * key_cache.shape[2]
    splits = _splits(sequences, key_cache.shape[0], most_tokens, window, query.device)
    return sequences * heads * splits * (size + 1) if splits > 1 else 0


def decode(
    query: torch.Tensor,  # [S, H, D], any strides but the last's, which is 1
    key_cache: torch.Tensor,  # [num_kv_heads, num_blocks, block_size, D], likewise
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,  # int32 [S, M]; what lies beyond a sequence's blocks isn't read
    seq_lens: torch.Tensor,  # int32 [S]: tokens in the cache, this one included; 0: the row is padding, and gets zeros
    scale: float | None = None,  # of the scores; None: 1/sqrt(D)
    window: int | None = None,  # keys that a query sees, its own included
    out: torch.Tensor | None = None,  # as query; made where it isn't given
    workspace: torch.Tensor | None = None,  # float32, contiguous, `decode_workspace` elements; likewise
) -> torch.Tensor:  # [S, H, D]
    """Attention of each sequence's newest token over its cached ones."""
    sequences, heads, size = query.shape
    kv_heads, _, block_size, _ = key_cache.shape
    _check_strides(query, key_cache, value_cache, block_tables)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    if not sequences:
        return out
    splits = _splits(sequences, kv_heads, block_tables.shape[1] * block_size, window, query.device)
    partial, log_sums = out, out
    if splits > 1:
        places = sequences * heads * splits
        if workspace is None:
            workspace = torch.empty(places * (size + 1), dtype=torch.float32, device=query.device)
        assert workspace.dtype == torch.float32
        partial, log_sums = workspace[: places * size], workspace[places * size : places * (size + 1)]
    group, block = heads // kv_heads, pad(size, 16)
    tiling = decode_tiling(group, block, query.element_size())
    _decode[(sequences, kv_heads, splits)](
        query,
        *query.stride()[:2],
        key_cache,
        *key_cache.stride()[:3],
        value_cache,
        *value_cache.stride()[:3],
        block_tables,
        block_tables.stride(0),
        seq_lens,
        partial,
        *out.stride()[:2],
        log_sums,
        splits,
        (size**-0.5 if scale is None else scale) * _LOG2_E,
        HEADS=heads,
        GROUP=group,
        ROWS=tiling.rows,
        SIZE=size,
        BLOCK=block,
        TILE=tiling.tile,
        BLOCK_SIZE=block_size,
        WINDOW=window or 0,
        SPLIT=splits > 1,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if splits > 1:
        _merge[(sequences, heads)](
            partial,
            log_sums,
            out,
            *out.stride()[:2],
            splits,
            HEADS=heads,
            SIZE=size,
            BLOCK=block,
            SPLITS=pad(splits),
            num_warps=4,
        )
    return out


def chunks(
    query: torch.Tensor,  # [T, H, D], any strides but the last's, which is 1
    key_cache: torch.Tensor,  # [num_kv_heads, num_blocks, block_size, D], likewise
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,  # int32 [S, M]; what lies beyond a sequence's blocks isn't read
    query_start: torch.Tensor,  # int32 [S + 1]: sequence i's tokens are rows query_start[i] .. query_start[i + 1]
    seq_lens: torch.Tensor,  # int32 [S]: tokens in the cache, this step's included
    scale: float | None = None,  # of the scores; None: 1/sqrt(D)
    window: int | None = None,  # keys that a query sees, its own included
    out: torch.Tensor | None = None,  # as query; made where it isn't given
) -> torch.Tensor:  # [T, H, D]; rows from query_start[S] on are left as they are
    """Causal attention of each sequence's newest tokens, any number of them, over its cached ones."""
    tokens, heads, size = query.shape
    kv_heads, _, block_size, _ = key_cache.shape
    _check_strides(query, key_cache, value_cache, block_tables)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    sequences = seq_lens.shape[0]
    if not tokens or not sequences:
        return out
    group, block = heads // kv_heads, pad(size, 16)
    tiling = chunks_tiling(group, block, query.element_size(), tokens // sequences)
    each = tiling.rows // group
    _chunks[(tokens // each + sequences, kv_heads)](
        query,
        *query.stride()[:2],
        key_cache,
        *key_cache.stride()[:3],
        value_cache,
        *value_cache.stride()[:3],
        block_tables,
        block_tables.stride(0),
        query_start,
        seq_lens,
        out,
        *out.stride()[:2],
        sequences,
        (size**-0.5 if scale is None else scale) * _LOG2_E,
        GROUP=group,
        ROWS=tiling.rows,
        TOKENS=each,
        SIZE=size,
        BLOCK=block,
        TILE=tiling.tile,
        BLOCK_SIZE=block_size,
        WINDOW=window or 0,
        MASKED_STAGES=tiling.num_stages if window else 1,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return out


def _check_strides(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, tables: torch.Tensor
) -> None:
    assert query.stride(-1) == key_cache.stride(-1) == value_cache.stride(-1) == tables.stride(-1) == 1
    assert query.dtype == key_cache.dtype == value_cache.dtype
    assert query.shape[1] % key_cache.shape[0] == 0
