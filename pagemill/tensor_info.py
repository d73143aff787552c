"""Where one tensor lies in a checkpoint: the entry that both header readers give and the loader follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. `shape` is in row-major (torch) order, in elements; `offset` counts from the start of `file`."""

    name: str  # as the file spells it
    dtype: str  # "F32", "F16", "BF16", "Q4_1" …
    shape: tuple[int, ...]
    file: Path
    offset: int  # bytes
    nbytes: int
