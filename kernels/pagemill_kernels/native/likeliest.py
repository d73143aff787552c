"""The likeliest token of each row of logits by the native library; the server's `model/operations.likeliest` calls it, and
holds its twin in torch.
"""

from __future__ import annotations

import ctypes

import torch

from pagemill_kernels.native.attention import check
from pagemill_kernels.native.library import loaded


def likeliest(logits: torch.Tensor) -> list[int | None]:
    """float32 [R, size], size > 0 → the place of each row's largest, the first among equals; None where any of it is not finite."""
    rows, size = logits.shape
    check(logits, torch.float32, (rows, max(size, 1)), "logits")
    places = (ctypes.c_int64 * rows)()
    loaded().pm_likeliest(logits.data_ptr(), rows, size, places)
    return [None if place < 0 else place for place in places]
