"""A layer's weights by their names in it: the one place where a family's linear layers are made.

Two kinds of linear, by how they are divided among processes: what fans out (queries, keys and values; gate and up) by its outputs,
what fans in (the output and down projections) by its inputs, and then each process has a share of the result. Sizes are those of
this process's part. Called by the families' layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.linear import Linear, make_linear


class LayerWeights:
    """`name` is what the names of the layer's tensors begin with, e.g. "model.layers.3"."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint, self._name = checkpoint, name

    def part(self, name: str) -> LayerWeights:
        """The weights of a module inside."""
        return LayerWeights(self._checkpoint, f"{self._name}.{name}")

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight."""
        return self._checkpoint.take(f"{self._name}.{name}.weight", size)

    def fan_out(self, names: Sequence[str], sizes: Sequence[int], in_size: int, bias: bool) -> Linear:
        """Several projections [size, in_size] of one input as one product; this process's outputs."""
        weight = self._checkpoint.take_rows(self._tensors(names, "weight"), sizes, in_size)
        vector = self._checkpoint.take_rows(self._tensors(names, "bias"), sizes) if bias else None
        return make_linear(weight, vector, self._checkpoint.kernels)

    def whole(self, name: str, out_size: int, in_size: int) -> Linear:
        """A projection that each process has all of."""
        weight = self._checkpoint.take(f"{self._name}.{name}.weight", out_size, in_size)
        return make_linear(weight, kernels=self._checkpoint.kernels)

    def fan_in(self, name: str, out_size: int, in_size: int, bias: bool) -> Linear:
        """A projection [out_size, in_size] whose result is added to the stream: the processes' shares are added up."""
        product = self.share_in(name, out_size, in_size, bias)
        parallel = self._checkpoint.parallel
        return product if parallel.size == 1 else lambda x: parallel.add_up(product(x))

    def share_in(self, name: str, out_size: int, in_size: int, bias: bool) -> Linear:
        """The same before its shares are added up: `add_up` is the caller's to call, for several at once."""
        weight = self._checkpoint.take_columns(f"{self._name}.{name}.weight", out_size, in_size)
        vector = self._checkpoint.take(f"{self._name}.{name}.bias", out_size) if bias else None
        once = vector if self._checkpoint.parallel.rank == 0 else None
        return make_linear(weight, once, self._checkpoint.kernels)

    @property
    def add_up(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """All processes' shares of a result."""
        return self._checkpoint.parallel.add_up

    def _tensors(self, names: Sequence[str], kind: str) -> list[str]:
        return [f"{self._name}.{name}.{kind}" for name in names]
