"""Compares the Triton backend with the torch backend on one pool: `TRITON_INTERPRET=1 python -m tests.server.model.triton_steps`.

A program of its own, for Triton decides when it is imported whether kernels are compiled or interpreted. Run by
`test_triton_attention`; with the argument `cuda` it runs on a GPU, on larger sizes.
"""

from __future__ import annotations

import sys

import torch

from pagemill_server.engine.schedule import ScheduledSequence
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.batch import InputBatch, make_batch
from pagemill_server.model.graphs import GraphInputs, is_decode
from pagemill_server.model.interface import AttentionMetadata, LayerAttention, StepAttention
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.triton_attention import TritonAttention
from tests.server.model.stepping import step_of

KINDS = (LayerAttention(), LayerAttention(window=9, scale=0.3))
Chunk = tuple[tuple[int, ...], int, int]  # block table, first position, tokens


def batch_of(chunks: list[Chunk], block_size: int) -> InputBatch:
    """A step of these, on the CPU."""
    sequences = [
        ScheduledSequence(place, (1,) * count, first, table[: -(-(first + count) // block_size)], None, 0, 0)
        for place, (table, first, count) in enumerate(chunks)
    ]
    return make_batch(step_of(sequences), block_size, torch.device("cpu"))


class Twins:
    """The same keys and values in two pools, one a backend."""

    def __init__(self, device: str, kv_heads: int, head_dim: int, block_size: int, blocks: int) -> None:
        self.device = torch.device(device)
        shape = len(KINDS), kv_heads, head_dim, blocks, block_size, torch.float32
        self.torch_pool, self.pool = KVPool(*shape, torch.device("cpu")), KVPool(*shape, self.device)
        self.pool.data.fill_(torch.nan)  # what was never written must not be read
        self.torch, self.triton = TorchAttention(self.torch_pool, KINDS), TritonAttention(self.pool, KINDS)
        self.kv_heads, self.head_dim, self.block_size = kv_heads, head_dim, block_size

    def compare(self, chunks: list[Chunk], heads: int) -> None:
        """One step."""
        batch = batch_of(chunks, self.block_size)
        tokens = len(batch.token_ids)
        generator = torch.Generator().manual_seed(tokens)
        sizes = (heads, self.kv_heads, self.kv_heads)
        rows = [torch.randn(tokens, count, self.head_dim, generator=generator) for count in sizes]
        for layer in range(len(KINDS)):
            wanted = self.torch.begin(batch.metadata)(*rows, layer)
            there = [row.to(self.device) for row in rows]
            found = self._begin(batch.metadata)(*there, layer)
            assert found.is_contiguous()
            torch.testing.assert_close(found.cpu(), wanted, atol=2e-5, rtol=2e-5)
        if is_decode(batch):
            self._compare_padded(chunks, rows)

    def _begin(self, metadata: AttentionMetadata) -> StepAttention:
        there = AttentionMetadata(
            metadata.slot_mapping.to(self.device),
            metadata.query_start,
            metadata.seq_lens,
            metadata.block_tables.to(self.device),
            metadata.block_size,
        )
        return self.triton.begin(there)

    def _compare_padded(self, chunks: list[Chunk], rows: list[torch.Tensor]) -> None:
        """As a graph reads it: wider tables than needed, and rows that are padding, which get zeros and write nothing."""
        batch = batch_of(chunks, self.block_size)
        count, size = len(chunks), len(chunks) + 2
        inputs = GraphInputs.empty(size, 3 + max(len(table) for table, _, _ in chunks), self.device)
        inputs.fill(batch, size)
        before = self.pool.data.clone()
        attend = self.triton.decoding(inputs.first(size))
        padded = [torch.cat((row, torch.full((2, *row.shape[1:]), 7.0))).to(self.device) for row in rows]
        found = attend(*padded, 0).cpu()
        torch.testing.assert_close(found[:count], self.torch.begin(batch.metadata)(*rows, 0), atol=2e-5, rtol=2e-5)
        assert not found[count:].any(), "padding gets zeros"
        torch.testing.assert_close(
            self.pool.data, before, equal_nan=True, rtol=0, atol=0
        )  # the step had been written before


def main(device: str) -> None:
    large = device == "cuda"
    twins = Twins(device, kv_heads=2, head_dim=64 if large else 16, block_size=16, blocks=400 if large else 30)
    long = 2000 if large else 20
    tables = [tuple(range(200, 200 + -(-(long + 40) // 16))) if large else (11, 3, 7, 2), (5, 9), (0,)]
    twins.compare([(tables[0], 0, long), (tables[1], 0, 17)], heads=6)  # longer pieces alone
    twins.compare([(tables[0], long, 1), (tables[2], 0, 5), (tables[1], 17, 1)], heads=6)  # mixed
    twins.compare([(tables[0], long + 1, 1), (tables[1], 18, 1), (tables[2], 5, 1)], heads=6)  # single tokens
    sys.stdout.write("equal\n")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["cpu"]))
