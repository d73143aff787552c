"""Attention over the paged cache by Triton's kernels: the GPU backend. `attention.TorchAttention` is its twin on CPU.

A step's single tokens (decoding) go through one kernel, which splits the keys over the device, all longer pieces through another.
`split` says which rows are which, once a step for all layers; the tensors that the kernels read are made then too, int32 on the
device. Slots that nothing was written to are masked by the kernels, so nothing is zeroed here. https://arxiv.org/abs/2309.06180
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagemill_kernels import paged_attention
from pagemill_kernels.write_kv import write_kv
from pagemill_server.model.interface import AttentionMetadata, LayerAttention, StepAttention
from pagemill_server.model.kv_pool import KVPool

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Which sequences of a step have a single token, and which several. Rows are of the step's tokens."""

    single: _Ints  # sequences
    single_rows: _Ints  # one a single sequence
    longer: _Ints  # sequences
    longer_rows: _Ints  # all their rows, sequence after sequence
    longer_start: _Ints  # [longer + 1]: where each begins among longer_rows


def split(query_start: Sequence[int]) -> Split:
    """By S + 1 places where the sequences begin among the rows."""
    starts = np.array(query_start, dtype=np.int64)
    counts = np.diff(starts)
    single, longer = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
    rows = [np.arange(starts[index], starts[index + 1]) for index in longer]
    return Split(
        single=single,
        single_rows=starts[:-1][single],
        longer=longer,
        longer_rows=np.concatenate(rows) if rows else np.empty(0, dtype=np.int64),
        longer_start=np.concatenate(([0], counts[longer].cumsum())),
    )


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What the kernels read of a step of single tokens, on the device. S = sequences, padding included."""

    slots: torch.Tensor  # int64 [S]; -1: padding
    block_tables: torch.Tensor  # int32 [S, blocks of the longest]
    seq_lens: torch.Tensor  # int32 [S]; 0: padding


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of a step's sequences."""

    rows: torch.Tensor | None  # int64; None: all rows of the step
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start: torch.Tensor | None  # int32; None: single tokens


class TritonAttention:
    """The backend; one an engine. `layers` says what each layer's attention is; left out, all see everything."""

    def __init__(self, pool: KVPool, layers: Sequence[LayerAttention] | None = None) -> None:
        self._pool = pool
        self._layers = tuple(layers) if layers is not None else (LayerAttention(),) * len(pool.keys)

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        """Lay out the step once for all layers."""
        parts = _parts(metadata)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
            write_kv(self._pool.keys[layer], self._pool.values[layer], key, value, metadata.slot_mapping)
            if len(parts) == 1:
                return self._read(query, parts[0], layer)
            out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
            for part in parts:
                assert part.rows is not None
                out.index_copy_(0, part.rows, self._read(query.index_select(0, part.rows), part, layer))
            return out

        return attend

    def decoding(self, inputs: DecodeInputs) -> StepAttention:
        """A step of single tokens whose layout is read from these tensors when it runs: what a captured graph replays."""

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
            write_kv(self._pool.keys[layer], self._pool.values[layer], key, value, inputs.slots)
            return self._read(query, _Part(None, inputs.block_tables, inputs.seq_lens, None), layer)

        return attend

    def _read(self, query: torch.Tensor, part: _Part, layer: int) -> torch.Tensor:
        keys, values, kind = self._pool.keys[layer], self._pool.values[layer], self._layers[layer]
        if part.query_start is None:
            seen: torch.Tensor = paged_attention.decode(
                query, keys, values, part.block_tables, part.seq_lens, kind.scale, kind.window
            )
        else:
            seen = paged_attention.chunks(
                query, keys, values, part.block_tables, part.query_start, part.seq_lens, kind.scale, kind.window
            )
        return seen


def _parts(metadata: AttentionMetadata) -> list[_Part]:
    """At most two: the single tokens and the longer pieces."""
    found, device = split(metadata.query_start), metadata.block_tables.device
    tables = metadata.block_tables.to(torch.int32)
    seq_lens = np.array(metadata.seq_lens, dtype=np.int32)
    mixed = bool(len(found.single) and len(found.longer))

    def put(values: npt.NDArray[np.signedinteger]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    parts = []
    for sequences, rows, starts in (
        (found.single, found.single_rows, None),
        (found.longer, found.longer_rows, found.longer_start),
    ):
        if len(sequences):
            parts.append(
                _Part(
                    rows=put(rows) if mixed else None,
                    block_tables=tables.index_select(0, put(sequences)) if mixed else tables,
                    seq_lens=put(seq_lens[sequences]),
                    query_start=None if starts is None else put(starts.astype(np.int32)),
                )
            )
    return parts
