"""The native kernels of one process: its pool of threads, and in what they multiply. Made by `part` where `device` has chosen them.

The one place that asks for the library, so that `PAGEMILL_NATIVE=0` means torch everywhere.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill_kernels.native import build, library
from pagemill_kernels.native.matrix import Matrix, Pool

log = logging.getLogger(__name__)


def instruction_set() -> str | None:
    """What the kernels for this processor were built for; None where there are none, or none are wanted.

    Raises PagemillError(InvalidConfiguration) where those that are asked for by name are not there."""
    asked = os.environ.get("PAGEMILL_NATIVE", "")
    try:
        loaded = None if asked == "0" else library.load()
    except OSError as error:  # compiled on a machine with a newer C library
        log.warning("the native kernels can't be loaded, so torch computes: %s", error)
        return None
    if loaded is None and asked not in ("", "0"):
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"PAGEMILL_NATIVE={asked} can't be had: it is one of 0, {', '.join(build.INSTRUCTION_SETS)}, what this "
            "processor runs, and is built by `make native`; leave it out for the best that is there",
        )
    if loaded is None:
        return None
    return str(loaded.pm_isa().decode())


@dataclass(frozen=True, slots=True)
class Kernels:
    """What makes and runs matrices. `weights` and `table` are the placement's."""

    pool: Pool
    arithmetic: torch.dtype  # float32, or bfloat16: products of bfloat16 added up in float32
    weights: str
    table: str

    def kept(self, stored: torch.dtype, *, quantised: bool) -> torch.dtype:
        """The type in which a matrix of the checkpoint comes to `matrix`, or stays a table. `quantised`: it was stored in blocks,
        and `stored` is what it was dequantised to."""
        if stored == torch.float64 or self.table == "float32":
            return torch.float32
        return torch.float16 if quantised and self.weights == "float16" else stored

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, paired: bool = False) -> Matrix:
        """Of a weight [out, in] and a bias [out]; `paired` as native.h has it."""
        stored = weight.dtype
        if self.weights == "int8":
            stored = torch.int8
        elif self.arithmetic == torch.bfloat16:
            stored = torch.bfloat16
        return Matrix(weight, None if bias is None else bias.float(), stored, self.arithmetic, paired)

    def rows_of(self, weight: torch.Tensor) -> torch.Tensor:
        """A table [rows, in] that is only looked up, in the type that it is kept in."""
        return weight.to(_TYPES[self.table]) if weight.dtype == torch.float32 else weight


def make_kernels(threads: int, dtype: torch.dtype, weights: str, table: str) -> Kernels:
    """With a pool of so many threads, this one among them."""
    return Kernels(Pool(threads), dtype, weights, table)


_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
