"""Reads a safetensors file's table with the standard library, without touching the weights.

Specification: https://github.com/huggingface/safetensors#format. Used by `model_files.inspect`.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from pagemill.failures import FailureReason, PagemillError
from pagemill.tensor_info import TensorInfo

_HEADER_LIMIT = 100_000_000  # bytes; the reference implementation's own
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def read_table(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file by name; raises PagemillError (ModelTruncated, ModelInvalid) that names the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise _truncated(path, size, 8)
        (length,) = struct.unpack("<Q", head)
        if length > _HEADER_LIMIT:
            raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is not a safetensors file")
        if 8 + length > size:  # before the read, which allocates what it is asked for
            raise _truncated(path, size, 8 + length)
        raw = file.read(length)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        table = {name: _info(name, entry, path, 8 + length) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"{path} has a damaged safetensors header: {error!r}"
        ) from None
    needed = max((info.offset + info.nbytes for info in table.values()), default=0)
    if size < needed:
        raise _truncated(path, size, needed)
    return table


def _info(name: str, entry: Any, path: Path, start: int) -> TensorInfo:
    """One entry, checked as the reference implementation does; raises ValueError, KeyError or TypeError when it is damaged."""
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError(f"tensor {name}: shape {shape}, data_offsets {[begin, end]}")
    if end - begin != -(-math.prod(shape) * _BITS[entry["dtype"]] // 8):
        raise ValueError(f"tensor {name}: {end - begin} bytes for shape {shape} of {entry['dtype']}")
    return TensorInfo(name, entry["dtype"], tuple(shape), path, start + begin, end - begin)


def _truncated(path: Path, size: int, needed: int) -> PagemillError:
    return PagemillError(
        FailureReason.MODEL_TRUNCATED, f"{path} is cut short: it has {size} bytes of {needed}; fetch it again"
    )
