"""Matrix products with weights: our native kernels' where they compute, else oneDNN's prepacked form, else torch's own.

A row of our kernels' is the same bits in any batch. Prepacked products are faster than torch's own for small batches and give a row
the same bits too (measured: docs/log.md), all but single rows on some machines, which `PackedLinear` finds out and pads. For each
number of rows oneDNN makes code of its own and keeps it, in milliseconds and half a megabyte a weight's shape; so few numbers of
rows are asked of it, and the rest is padding. Used by the model families; knows no layers.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from pagemill_kernels.native.matrix import Matrix
from pagemill_server.model.native_kernels import Kernels

_BATCH_HINT = 16  # rows that the packed layout is made for; any from 8 up gives the same bits


class Linear(Protocol):
    """x [T, in] → [T, out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None, kernels: Kernels | None = None) -> Linear:
    """The best product for a weight [out, in] and a bias [out]; the weight may be copied, so don't keep it."""
    if kernels is not None:
        return NativeLinear(kernels.matrix(weight, bias), kernels)
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and can_pack():
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def can_pack() -> bool:
    """Whether this torch has the private operators that prepack."""
    return (
        torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class PlainLinear:
    """torch's own."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class NativeLinear:
    """Our kernels'."""

    def __init__(self, matrix: Matrix, kernels: Kernels) -> None:
        self._matrix, self._pool = matrix, kernels.pool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._matrix.linear(self._pool, x.float().contiguous()).to(x.dtype)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """int64 [N] → the weights of those outputs as they are kept, float32 [N, in]. IndexError for one that isn't there."""
        return torch.stack([self._matrix.row(output) for output in outputs.tolist()])


def rows_computed(rows: int) -> int:
    """How many rows a product is made for: eight sizes between a power of two and the next, so an eighth more at most."""
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class PackedLinear:
    """oneDNN's, float32. `pads` says whether a single row is computed as two."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCH_HINT)
        self._bias = bias
        self.pads = False
        self.pads = self._single_row_differs(weight.shape[1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        computed = 2 if self.pads and rows == 1 else rows_computed(rows)
        if computed == rows:
            return self._product(x)
        return self._product(functional.pad(x, (0, 0, 0, computed - rows)))[:rows]

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product

    def _single_row_differs(self, in_size: int) -> bool:
        """On AVX-512 one row of 1536 or more elements takes another kernel. Asked of the machine, not of its name."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn((2, in_size), generator=generator)
        return not torch.equal(self._product(rows)[:1], self._product(rows[:1]))
