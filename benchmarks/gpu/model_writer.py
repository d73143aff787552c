"""Writes a shape's model as Hugging Face lays it out: safetensors in bfloat16, tensor by tensor, so that the host holds one.

The tokenizer's tokens are bytes, and a filler for each id beyond them, so that every id has a text. A folder that is complete is
left as it is. https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

import torch

from benchmarks.gpu.shapes import BFLOAT16, Shape
from examples import tiny_models

_AT_ONCE = 1 << 26  # elements
_WIDTH = 0.02  # of the weights: what training begins with


def write(shape: Shape, folder: Path, device: torch.device) -> Path:
    """Make the model in `folder`/NAME and return that; random numbers come from `device`, which is much faster on a GPU."""
    target = folder / shape.name
    if (target / "config.json").exists():  # the last that is written
        return target
    target.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(shape, target)
    _write_weights(shape, target / "model.safetensors", device)
    (target / "config.json").write_text(json.dumps(shape.config(), indent=1) + "\n", encoding="utf-8")
    return target


def header(shape: Shape) -> bytes:
    """What a safetensors file begins with."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, dimensions in shape.tensors():
        end = start + prod(dimensions) * BFLOAT16
        entries[name] = {"dtype": "BF16", "shape": list(dimensions), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _write_weights(shape: Shape, file: Path, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(0)
    with file.open("wb") as out:
        out.write(header(shape))
        for _, dimensions in shape.tensors():
            norm, left = len(dimensions) == 1, prod(dimensions)
            while left:
                some = min(left, _AT_ONCE)
                values = torch.randn(some, generator=generator, device=device) * (0.1 if norm else _WIDTH)
                values = (values + 1.0 if norm else values).to(torch.bfloat16)
                out.write(values.view(torch.uint8).cpu().numpy().tobytes())
                left -= some


def _write_tokenizer(shape: Shape, folder: Path) -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {character: byte for byte, character in enumerate(tiny_models.bytes_as_text())}
    special = tiny_models.special(256, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    fillers = {f"token{number}": number for number in range(256 + len(special), shape.vocab)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary | fillers, "merges": []},
    }
    tiny_models.write_json(folder / "tokenizer.json", tokenizer)
    tiny_models.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "chat_template": tiny_models.CHAT_TEMPLATE,
        },
    )
