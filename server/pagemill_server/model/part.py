"""One process's part of a model: its slice of the weights, and caches for its heads. The whole model where there is one process.

The engine's process (rank 0, `load`) and the workers beside it (`worker`) make theirs from the same `Setup`, so that what one
computes fits what the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from pagemill.model_files import ModelFiles
from pagemill.tensor_parallel import divided
from pagemill_server.model import native_decoder
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.block_copies import BlockCopier, make_copier
from pagemill_server.model.checkpoint import Checkpoint, Progress
from pagemill_server.model.device import Placement
from pagemill_server.model.families import make_model
from pagemill_server.model.host_pool import HostPool
from pagemill_server.model.interface import AttentionBackend
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.native_attention import NativeAttention, can_attend
from pagemill_server.model.native_kernels import Kernels, make_kernels
from pagemill_server.model.parallel import ALONE, Group, Parallel


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process must know to make its part. Filled by `load`; crosses to the workers."""

    files: ModelFiles
    placement: Placement
    block_size: int  # tokens
    max_model_len: int  # tokens
    rank: int = 0
    size: int = 1  # processes
    meeting: Path | None = None  # the file in which they find each other; None for one alone


def _kernels(placement: Placement) -> Kernels:
    return make_kernels(placement.threads, placement.dtype, placement.weights, placement.table)


@dataclass(frozen=True, slots=True)
class Cache:
    """Where keys and values live, and what reads and moves them."""

    pool: KVPool
    attention: AttentionBackend
    copier: BlockCopier | None  # None: there is no host tier


class Part:
    """Raises PagemillError for a checkpoint that can't be taken."""

    def __init__(self, setup: Setup, progress: Progress = lambda done, total: None) -> None:
        placement = setup.placement
        torch.set_num_threads(placement.threads)
        self._setup = setup
        self._config = divided(setup.files.config, setup.size)
        self._group = Group() if setup.size > 1 else None
        parallel = ALONE if self._group is None else Parallel(setup.rank, setup.size, self._group)
        self._kernels = None if placement.kernels is None else _kernels(placement)
        whole = self._kernels is not None and native_decoder.takes(self._config, setup.size)
        dtype = torch.float32 if whole else placement.dtype  # of vectors, which the decoder's kernels read in float32
        checkpoint = Checkpoint(setup.files, dtype, placement.device, progress, parallel, self._kernels)
        self.model = make_model(checkpoint, self._config, setup.max_model_len)

    def meet(self) -> None:
        """Before the first step. Raises RuntimeError when the others don't come."""
        if self._group is not None and self._setup.meeting is not None:
            self._group.meet(self._setup.meeting, self._setup.rank, self._setup.size)

    def cache(self, num_blocks: int, num_host_blocks: int = 0) -> Cache:
        """Take the memory for so many blocks in each tier."""
        config, placement = self._config, self._setup.placement
        kernels = self._kernels if can_attend(config.head_dim, placement.dtype) else None
        pool = KVPool(
            config.num_hidden_layers,
            config.num_key_value_heads,
            config.head_dim,
            num_blocks,
            self._setup.block_size,
            placement.dtype,
            placement.device,
            by_block=kernels is not None,
        )
        copier = make_copier(pool, HostPool(pool, num_host_blocks)) if num_host_blocks else None
        return Cache(pool, self._attention(pool, kernels), copier)

    def _attention(self, pool: KVPool, kernels: Kernels | None) -> AttentionBackend:
        if pool.data.device.type == "cuda":
            # Here and not above: Triton need not be there where no GPU is.
            from pagemill_server.model.triton_attention import TritonAttention

            return TritonAttention(pool, self.model.attention)
        if kernels is not None:
            return NativeAttention(pool, self.model.attention, kernels.pool)
        return TorchAttention(pool, self.model.attention)
