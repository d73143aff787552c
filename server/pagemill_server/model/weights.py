"""A layer's weights by their names in it: the one place where a family's linear layers are made.

Two kinds of linear, by how they would be divided: what fans out (queries, keys and values; gate and up) by its outputs, what fans
in (the output and down projections) by its inputs. Called by the families' layers; knows no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        """Several projections [size, in_size] of one input as one product."""
        weight = self._checkpoint.take_rows(self._tensors(names, "weight"), sizes, in_size)
        return make_linear(weight, self._checkpoint.take_rows(self._tensors(names, "bias"), sizes) if bias else None)

    def fan_in(self, name: str, out_size: int, in_size: int, bias: bool) -> Linear:
        """A projection [out_size, in_size] whose result is added to the stream."""
        return self.fan_out((name,), (out_size,), in_size, bias)

    def _tensors(self, names: Sequence[str], kind: str) -> list[str]:
        return [f"{self._name}.{name}.{kind}" for name in names]
