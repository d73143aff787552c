"""Which keys each query of a step meets, and in what shapes: the torch backend's layout, decided once a step.

Shapes follow from a token's position alone (see `attention`): tiles of LONGEST_TILE keys from the sequence's start, the last one
rounded up to a multiple of SPAN. Single tokens (decoding) of all sequences share calls; a longer chunk goes span by span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagemill_server.model.interface import AttentionMetadata

LONGEST_TILE = 256  # keys in one matrix product; beyond, libraries split the sum by their own rules
SPAN = 64  # a last tile's length is a multiple of this: less is gathered in vain than with whole tiles

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """Tiles of equal length, one entry each; of any sequences with a single token. N = tiles."""

    length: int  # keys
    rows: torch.Tensor  # int64 [N]: which of the step's single tokens
    order: torch.Tensor  # int64 [N]: the tile's number in its sequence
    blocks: torch.Tensor  # int64 [N * blocks a tile]
    offsets: torch.Tensor  # int64 [N]: where in the tile the token stands; it sees keys up to there


@dataclass(frozen=True, slots=True)
class SpanRows:
    """Rows of a chunk whose positions lie in one span: they have the same tiles."""

    first_row: int
    last_row: int  # exclusive
    offset: int  # of the first row's position in its last tile
    keys: int  # up to the end of the span, counted from the sequence's start


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one sequence."""

    blocks: torch.Tensor  # int64: of the whole sequence, filled up with the null block to the end of the last span
    spans: tuple[SpanRows, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step."""

    decode_rows: torch.Tensor | None  # int64 [S]: rows of the single tokens
    full_tiles: DecodeTiles | None
    last_tiles: tuple[DecodeTiles, ...]  # one entry a length
    most_tiles: int
    chunks: tuple[Chunk, ...]
    fresh_blocks: torch.Tensor | None  # int64: see KVPool.write


def plan(metadata: AttentionMetadata, null_block: int) -> Plan:
    """Lay out one step."""
    block_size = metadata.block_size
    seq_lens = np.array(metadata.seq_lens, dtype=np.int64)
    query_start = np.array(metadata.query_start, dtype=np.int64)
    counts = np.diff(query_start)
    tables = _padded(metadata, seq_lens, null_block)

    single = np.flatnonzero(counts == 1)
    positions = seq_lens[single] - 1
    full, last = _decode_tiles(tables[single], positions, block_size) if len(single) else (None, ())
    chunks = tuple(
        _chunk(tables[index], int(seq_lens[index]), int(query_start[index]), int(counts[index]), block_size)
        for index in np.flatnonzero(counts > 1)
    )
    begun = (seq_lens - 1) // block_size  # the last block of each sequence
    fresh = (begun * block_size >= seq_lens - counts) & (seq_lens % block_size != 0)
    return Plan(
        decode_rows=torch.from_numpy(query_start[:-1][single]) if len(single) else None,
        full_tiles=full,
        last_tiles=last,
        most_tiles=int(positions.max()) // LONGEST_TILE + 1 if len(single) else 0,
        chunks=chunks,
        fresh_blocks=torch.from_numpy(tables[fresh, begun[fresh]]) if fresh.any() else None,
    )


def _padded(metadata: AttentionMetadata, seq_lens: _Ints, null_block: int) -> _Ints:
    """Block tables filled up with the null block to whole tiles: [S, blocks]."""
    given: _Ints = metadata.block_tables.cpu().numpy()
    used = -(-seq_lens // metadata.block_size)
    tile_blocks = LONGEST_TILE // metadata.block_size
    width = -(-int(used.max()) // tile_blocks) * tile_blocks
    tables = np.full((len(seq_lens), width), null_block, dtype=np.int64)
    tables[:, : given.shape[1]] = given[:, :width]
    tables[np.arange(width) >= used[:, None]] = null_block
    return tables


def _decode_tiles(
    tables: _Ints, positions: _Ints, block_size: int
) -> tuple[DecodeTiles | None, tuple[DecodeTiles, ...]]:
    number, offsets = np.divmod(positions, LONGEST_TILE)  # of each token's last tile; where it stands in it
    lengths = (offsets // SPAN + 1) * SPAN
    last = []
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        last.append(_tiles(tables, rows, number[rows], offsets[rows], int(length), block_size))
    if not number.any():
        return None, tuple(last)
    rows = np.repeat(np.arange(len(positions)), number)
    order = np.concatenate([np.arange(count) for count in number])
    return _tiles(tables, rows, order, np.zeros_like(rows), LONGEST_TILE, block_size), tuple(last)


def _tiles(tables: _Ints, rows: _Ints, order: _Ints, offsets: _Ints, length: int, block_size: int) -> DecodeTiles:
    first = order * (LONGEST_TILE // block_size)
    columns = first[:, None] + np.arange(-(-length // block_size))
    return DecodeTiles(
        length=length,
        rows=torch.from_numpy(rows),
        order=torch.from_numpy(order),
        blocks=torch.from_numpy(tables[rows[:, None], columns].reshape(-1)),
        offsets=torch.from_numpy(offsets),
    )


def _chunk(table: _Ints, seq_len: int, first_row: int, count: int, block_size: int) -> Chunk:
    start = seq_len - count
    spans = []
    for span in range(start // SPAN, (seq_len - 1) // SPAN + 1):
        low, high = max(start, span * SPAN), min(seq_len, (span + 1) * SPAN)
        row = first_row + low - start
        spans.append(SpanRows(row, row + high - low, low % LONGEST_TILE, (span + 1) * SPAN))
    blocks = -(-spans[-1].keys // block_size)
    return Chunk(torch.from_numpy(table[:blocks].copy()), tuple(spans))
