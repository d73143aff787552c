"""Writes a model's GGUF with 16-bit weights, once, for peers that read GGUF: the same numbers that our own server computes with.

    python -m benchmarks.peers.gguf_16bit MODEL [f16|bf16]

Matrices are dequantised by llama.cpp's own code (`gguf`) and rounded to 16 bits, norms stay float32; every field is copied, the
tokenizer's too. Kept in $PAGEMILL_BENCH_CACHE (default ~/.cache/pagemill/benchmarks).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pagemill.model_files import inspect, resolve

Kind = Literal["f16", "bf16"]


def converted(model: str, kind: Kind) -> Path:
    """Where it is; written where it is not there yet. Raises ValueError for a model that is no GGUF."""
    files = inspect(resolve(model))
    if files.format != "gguf":
        raise ValueError(f"{model} is {files.format}: this peer reads GGUF, and only a GGUF is converted here")
    source = files.path
    target = cache_folder() / f"{source.name.partition('.')[0]}.{kind}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        _write(source, part, kind)
        part.replace(target)
    return target


def cache_folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagemill" / "benchmarks"
    return Path(os.environ.get("PAGEMILL_BENCH_CACHE") or default)


def _write(source: Path, target: Path, kind: Kind) -> None:
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    file_type = gguf.LlamaFileType.MOSTLY_F16 if kind == "f16" else gguf.LlamaFileType.MOSTLY_BF16
    writer.add_file_type(file_type)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            types = field.types
            sub_type = types[1] if len(types) > 1 else None
            writer.add_key_value(field.name, field.contents(), types[0], sub_type=sub_type)
    stored = gguf.GGMLQuantizationType.F16 if kind == "f16" else gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        data: Any = values if values.ndim < 2 else gguf.quants.quantize(values, stored)
        writer.add_tensor(tensor.name, data, raw_dtype=None if values.ndim < 2 else stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    print(converted(sys.argv[1], "bf16" if sys.argv[2:] == ["bf16"] else "f16"))
