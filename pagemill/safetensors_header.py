"""Reads a safetensors file's table with the standard library, without touching the weights.

Specification: https://github.com/huggingface/safetensors#format. Used by `model_files.inspect`.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from pagemill.failures import FailureReason, PagemillError
from pagemill.tensor_info import TensorInfo

_HEADER_LIMIT = 100_000_000  # bytes; the reference implementation's own


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
        raw = file.read(length)
    if len(raw) < length:
        raise _truncated(path, size, 8 + length)
    try:
        header = json.loads(raw)
        table = {
            name: TensorInfo(
                name,
                entry["dtype"],
                tuple(entry["shape"]),
                path,
                8 + length + entry["data_offsets"][0],
                entry["data_offsets"][1] - entry["data_offsets"][0],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"{path} has a damaged safetensors header: {error!r}"
        ) from None
    needed = max((info.offset + info.nbytes for info in table.values()), default=0)
    if size < needed:
        raise _truncated(path, size, needed)
    return table


def _truncated(path: Path, size: int, needed: int) -> PagemillError:
    return PagemillError(
        FailureReason.MODEL_TRUNCATED, f"{path} is cut short: it has {size} bytes of {needed}; fetch it again"
    )
