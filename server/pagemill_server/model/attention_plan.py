"""Which keys each query of a step meets, and in what shapes: the torch backend's layout, decided once a step and window.

Shapes follow from a token's position and the layer's window alone (see `attention`): tiles of LONGEST_TILE keys, counted from the
sequence's start, the last one rounded up to a multiple of SPAN. A window leaves out the tiles before it and masks what it cuts of
its first. Single tokens (decoding) of all sequences share calls; a longer chunk goes span by span.

The pool is addressed in units of gcd(block size, SPAN) tokens, so that tiles and blocks need not fit each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np
import numpy.typing as npt
import torch

from pagemill.memory_fit import TOKENS_AT_ONCE
from pagemill_server.model.interface import AttentionMetadata

LONGEST_TILE = 256  # keys in one matrix product; beyond, libraries split the sum by their own rules
MOST_TILES = (
    TOKENS_AT_ONCE // LONGEST_TILE
)  # in one entry: sequences that share blocks may meet more keys than the pool has
SPAN = 64  # a last tile's length is a multiple of this: less is gathered in vain than with whole tiles

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """Tiles of equal length, one entry each; of any sequences with a single token. N = tiles."""

    length: int  # keys
    rows: torch.Tensor  # int64 [N]: which of the step's single tokens
    order: torch.Tensor  # int64 [N]: the tile's number among those that its token meets
    units: torch.Tensor  # int64 [N * units a tile]
    first_seen: torch.Tensor | None  # int64 [N]: the token sees keys from there on, counted in the tile; None: all
    last_seen: torch.Tensor | None  # int64 [N]: and up to there; None: all


@dataclass(frozen=True, slots=True)
class SpanRows:
    """Rows of a chunk that have the same tiles: their positions lie in one span, their windows begin in one tile."""

    first_row: int
    last_row: int  # exclusive
    first_key: int  # where the first tile begins, counted from the chunk's first gathered key
    keys: int  # up to the end of the span, counted likewise
    first_seen: int | None  # by the first row, in the first tile; a row later one more. None: the window cuts nothing
    last_seen: int  # by the first row, in the last tile; a row later one more


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one sequence."""

    units: torch.Tensor  # int64: of all keys that its rows meet, filled up with null units to the end of the last span
    spans: tuple[SpanRows, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, for the layers of one window."""

    decode_rows: torch.Tensor | None  # int64 [S]: rows of the single tokens
    decode_tiles: tuple[DecodeTiles, ...]  # one entry a length and kind of mask, or several of MOST_TILES
    most_tiles: int  # that a single token meets
    chunks: tuple[Chunk, ...]


def unit_tokens(block_size: int) -> int:
    """Tokens in a unit of the pool."""
    return gcd(block_size, SPAN)


def plan(metadata: AttentionMetadata, null_block: int, window: int | None = None) -> Plan:
    """Lay out one step."""
    seq_lens = np.array(metadata.seq_lens, dtype=np.int64)
    query_start = np.array(metadata.query_start, dtype=np.int64)
    counts = np.diff(query_start)
    unit = unit_tokens(metadata.block_size)
    tables = _unit_tables(metadata, seq_lens, null_block, unit)

    single = np.flatnonzero(counts == 1)
    tiles, most = _decode_tiles(tables[single], seq_lens[single] - 1, window, unit) if len(single) else ((), 0)
    chunks = tuple(
        _chunk(tables[index], int(seq_lens[index]), int(query_start[index]), int(counts[index]), window, unit)
        for index in np.flatnonzero(counts > 1)
    )
    rows = torch.from_numpy(query_start[:-1][single]) if len(single) else None
    return Plan(rows, tiles, most, chunks)


def fresh_blocks(metadata: AttentionMetadata) -> torch.Tensor | None:
    """int64: blocks that this step begins and doesn't fill, see `KVPool.write`; None when there are none."""
    block_size = metadata.block_size
    seq_lens = np.array(metadata.seq_lens, dtype=np.int64)
    counts = np.diff(np.array(metadata.query_start, dtype=np.int64))
    last = (seq_lens - 1) // block_size  # the last block of each sequence
    fresh = (last * block_size >= seq_lens - counts) & (seq_lens % block_size != 0)
    tables: _Ints = metadata.block_tables.cpu().numpy()
    return torch.from_numpy(tables[fresh, last[fresh]]) if fresh.any() else None


def _unit_tables(metadata: AttentionMetadata, seq_lens: _Ints, null_block: int, unit: int) -> _Ints:
    """Block tables in units, filled up with null units to whole tiles: [S, units]."""
    in_block = metadata.block_size // unit
    given: _Ints = metadata.block_tables.cpu().numpy()
    given = (given[:, :, None] * in_block + np.arange(in_block)).reshape(len(given), -1)
    used = -(-seq_lens // unit)
    tile_units = LONGEST_TILE // unit
    width = -(-int(used.max()) // tile_units) * tile_units
    tables = np.full((len(seq_lens), width), null_block * in_block, dtype=np.int64)
    tables[:, : given.shape[1]] = given[:, :width]
    tables[np.arange(width) >= used[:, None]] = null_block * in_block
    return tables


def _begins(positions: _Ints, window: int | None) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """The first key that each position sees, and whether its window cuts anything off."""
    if window is None:
        return np.zeros_like(positions), np.zeros_like(positions, dtype=np.bool_)
    return np.maximum(positions - window + 1, 0), positions >= window


def _decode_tiles(
    tables: _Ints, positions: _Ints, window: int | None, unit: int
) -> tuple[tuple[DecodeTiles, ...], int]:
    last, last_seen = np.divmod(positions, LONGEST_TILE)
    begins, cut = _begins(positions, window)
    first, first_seen = np.divmod(begins, LONGEST_TILE)
    made = []

    def add(rows: _Ints, number: _Ints, length: int, seen_from: _Ints | None, seen_to: _Ints | None) -> None:
        for begin in range(0, len(rows), MOST_TILES):
            part = slice(begin, begin + MOST_TILES)
            columns = number[part, None] * (LONGEST_TILE // unit) + np.arange(length // unit)
            made.append(
                DecodeTiles(
                    length=length,
                    rows=torch.from_numpy(rows[part]),
                    order=torch.from_numpy((number - first[rows])[part]),
                    units=torch.from_numpy(tables[rows[part, None], columns].reshape(-1)),
                    first_seen=None if seen_from is None else torch.from_numpy(seen_from[part]),
                    last_seen=None if seen_to is None else torch.from_numpy(seen_to[part]),
                )
            )

    lengths = (last_seen // SPAN + 1) * SPAN
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        # A window shorter than the tile cuts the last tile too.
        seen_from = np.where(first[rows] == last[rows], first_seen[rows], 0)
        add(rows, last[rows], int(length), seen_from if seen_from.any() else None, last_seen[rows])
    edge = cut & (first < last)
    if edge.any():
        rows = np.flatnonzero(edge)
        add(rows, first[rows], LONGEST_TILE, first_seen[rows], None)
    whole = last - first - edge
    if whole.any():
        rows = np.repeat(np.arange(len(positions)), whole)
        number = np.concatenate([np.arange(end - count, end) for end, count in zip(last, whole, strict=True)])
        add(rows, number, LONGEST_TILE, None, None)
    return tuple(made), int((last - first).max()) + 1


def _chunk(table: _Ints, seq_len: int, first_row: int, count: int, window: int | None, unit: int) -> Chunk:
    positions = np.arange(seq_len - count, seq_len)
    begins, cut = _begins(positions, window)
    first = begins // LONGEST_TILE
    gathered = int(first[0]) * LONGEST_TILE  # position of the first gathered key
    groups = np.stack((positions // SPAN, first, cut))
    edges = [0, *(np.flatnonzero((groups[:, 1:] != groups[:, :-1]).any(0)) + 1).tolist(), count]
    spans = []
    for low, high in pairwise(edges):
        position, tile = int(positions[low]), int(first[low]) * LONGEST_TILE
        spans.append(
            SpanRows(
                first_row=first_row + low,
                last_row=first_row + high,
                first_key=tile - gathered,
                keys=(position // SPAN + 1) * SPAN - gathered,
                first_seen=int(begins[low]) - tile if cut[low] else None,
                last_seen=position % LONGEST_TILE,
            )
        )
    begin, end = gathered // unit, (gathered + spans[-1].keys) // unit
    return Chunk(torch.from_numpy(table[begin:end].copy()), tuple(spans))
