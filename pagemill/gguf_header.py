"""Reads a GGUF file's metadata and tensor table with the standard library, without touching the weights.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). Used by
`model_files.inspect`; dequantising is the server's loader's business.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagemill.failures import FailureReason, PagemillError
from pagemill.tensor_info import TensorInfo

MAGIC = b"GGUF"
# type number: (name, elements a block, bytes a block); ggml's own table
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1),
    25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 30: ("BF16", 1, 2),
}  # fmt: skip
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES = 1 << 22  # a count or length above this is a damaged file, not a model (vocabularies have 2^18)
_MOST_DIMS = 4  # ggml's own


class CutHeader(PagemillError):
    """The file ends before its header does."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What stands before the weights."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GGUFHeader:
    """Parse the header; raises PagemillError (ModelInvalid, ModelTruncated) that names the file."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise PagemillError(FailureReason.MODEL_TRUNCATED, f"{path} is cut short: fetch it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data, path).header()
            except (struct.error, EOFError):
                raise CutHeader(
                    FailureReason.MODEL_TRUNCATED, f"{path} ends inside its header: fetch it again"
                ) from None
            except (ValueError, RecursionError) as error:
                raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is not a valid GGUF file: {error}") from None


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0

    def header(self) -> GGUFHeader:
        if self._data[:4] != MAGIC:
            raise PagemillError(FailureReason.MODEL_INVALID, f"{self._path} is not a GGUF file")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise PagemillError(
                FailureReason.MODEL_INVALID, f"{self._path} is GGUF version {version}: versions 2 and 3 can be read"
            )
        num_tensors, num_entries = self._count(), self._count()
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        entries = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment <= 0 or alignment % 8:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return GGUFHeader(metadata, {name: self._info(start, name, dims, kind, at) for name, dims, kind, at in entries})

    def _info(self, start: int, name: str, dims: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        if kind not in TYPES:
            raise PagemillError(
                FailureReason.MODEL_INVALID,
                f"{self._path}: tensor {name} has GGUF type {kind}, which can't be read; "
                f"use one of {', '.join(t[0] for t in TYPES.values())}",
            )
        dtype, block, size = TYPES[kind]
        if dims and dims[0] % block:
            raise ValueError(f"tensor {name}: rows of {dims[0]} elements can't be {dtype}, whose blocks hold {block}")
        nbytes = math.prod(dims) // block * size
        if start + offset + nbytes > len(self._data):
            raise PagemillError(
                FailureReason.MODEL_TRUNCATED,
                f"{self._path} is cut short: it has {len(self._data)} bytes, tensor {name} ends at "
                f"{start + offset + nbytes}; fetch it again",
            )
        return TensorInfo(name, dtype, tuple(reversed(dims)), self._path, start + offset, nbytes)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dims = self._scalar("I")
        if num_dims > _MOST_DIMS:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        dims = tuple(self._scalar("Q") for _ in range(num_dims))
        return name, dims, self._scalar("I"), self._scalar("Q")

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += size
        return value

    def _count(self) -> int:
        count = int(self._scalar("Q"))
        if count > _MOST_ENTRIES:
            raise EOFError
        return count

    def _string(self) -> str:
        length = self._count()
        raw = self._data[self._at : self._at + length]
        if len(raw) != length:
            raise EOFError
        self._at += length
        return raw.decode("utf-8", errors="surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise ValueError(f"value type {kind}")
        inner, count = self._scalar("I"), self._count()
        if inner in _SCALARS:
            code = f"<{count}{_SCALARS[inner]}"
            values = list(struct.unpack_from(code, self._data, self._at))
            self._at += struct.calcsize(code)
            return values
        read: Callable[[], Any] = self._string if inner == _STRING else lambda: self._value(inner)
        return [read() for _ in range(count)]
