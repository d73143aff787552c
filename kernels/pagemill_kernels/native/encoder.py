"""Whole steps of BERT and RoBERTa by the native library; the server's `model/bert.py` is its twin in torch.

Knows the library's structures and what must be kept alive for them, not checkpoints. A text's states follow from that text alone,
to the last bit. Called by the server's model.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pagemill_kernels.native.attention import NO_MEMORY, check, check_heads
from pagemill_kernels.native.library import loaded
from pagemill_kernels.native.matrix import Epilogue, Matrix, Pool

_TABLE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # native.h's Type
ACTIVATIONS: Mapping[str, Epilogue] = {
    "gelu": Epilogue.GELU,
    "gelu_new": Epilogue.GELU_TANH,
    "gelu_pytorch_tanh": Epilogue.GELU_TANH,
    "relu": Epilogue.RELU,
}  # by their names in config.json
_STEP = 16  # elements of a state that are taken at once
_NO_TOKEN, _NO_POSITION = -1, -2


class _LayerFields(ctypes.Structure):
    """native.h's EncoderLayer."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "out", "up", "down")),
        *((f"{name}_norm{part}", ctypes.c_void_p) for name in ("attention", "output") for part in ("", "_bias")),
    ]


class _EncoderFields(ctypes.Structure):
    """native.h's Encoder."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("layers", "hidden", "heads", "vocab", "positions", "activation")),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(_LayerFields)),
        *((name, ctypes.c_void_p) for name in ("norm", "norm_bias", "position_table", "table")),
        ("table_type", ctypes.c_int),
    ]


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm's, float32 [hidden]."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer. All matrices have one arithmetic, float32 or bfloat16."""

    qkv: Matrix  # [3 * hidden, hidden]: queries, keys, values
    out: Matrix  # [hidden, hidden]
    up: Matrix  # [inner, hidden]
    down: Matrix  # [hidden, inner]
    attention_norm: Norm
    output_norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Sizes in elements. hidden / heads is a multiple of 16, up to 256."""

    hidden: int
    heads: int
    activation: str  # one of ACTIVATIONS
    eps: float  # of all norms


class NativeEncoder:
    """All layers and the embeddings. One step at a time."""

    def __init__(
        self,
        pool: Pool,
        shape: EncoderShape,
        layers: Sequence[EncoderLayer],
        norm: Norm,  # of the embeddings
        positions: torch.Tensor,  # float32 [positions, hidden]: the token type's row is added to each
        table: torch.Tensor,  # [vocab, hidden], float32, bfloat16 or float16
    ) -> None:
        """ValueError where the parts do not fit each other. Nothing is copied; all is kept alive."""
        self.shape, self._pool = shape, pool
        self._kept = (tuple(layers), norm, positions, table)
        fields = _encoder_fields(shape, layers, norm, positions, table)
        self._library = library = loaded()
        self._handle = library.pm_encoder_new(ctypes.addressof(fields))
        if not self._handle:
            raise ValueError("the encoder's matrices do not fit its shape, or each other's arithmetic")
        weakref.finalize(self, library.pm_encoder_free, self._handle).atexit = False  # another thread may still compute

    def forward(
        self,
        token_ids: torch.Tensor,  # int64 [T]
        positions: torch.Tensor,  # int64 [T]: rows of the position table
        query_start: Sequence[int],  # where each text begins, and T
    ) -> torch.Tensor:  # float32 [T, hidden]
        """The last hidden states. IndexError for a token or position that there is not."""
        starts = torch.tensor(query_start, dtype=torch.int32)
        tokens = query_start[-1]
        if query_start[0] != 0 or bool((starts.diff() < 0).any()):
            raise ValueError("texts begin one after another, from 0 on")
        for tensor, name in ((token_ids, "token_ids"), (positions, "positions")):
            check(tensor, torch.int64, (tokens,), name)
        hidden = torch.empty((tokens, self.shape.hidden))
        code = self._library.pm_encoder_forward(
            self._handle,
            self._pool.handle,
            token_ids.data_ptr(),
            positions.data_ptr(),
            starts.data_ptr(),
            len(query_start) - 1,
            hidden.data_ptr(),
        )
        if code == _NO_TOKEN:
            raise IndexError("a token is outside the vocabulary")
        if code == _NO_POSITION:
            raise IndexError("a position is outside the table")
        if code == NO_MEMORY:
            raise MemoryError("no memory for a step's workspace")
        return hidden

    @property
    def workspace_bytes(self) -> int:
        """What is kept between steps, sized by the widest so far."""
        return int(self._library.pm_encoder_workspace(self._handle))


def _encoder_fields(
    shape: EncoderShape, layers: Sequence[EncoderLayer], norm: Norm, positions: torch.Tensor, table: torch.Tensor
) -> _EncoderFields:
    if shape.hidden % shape.heads != 0 or shape.hidden % _STEP != 0:
        raise ValueError(f"{shape.heads} heads over a hidden size of {shape.hidden}")
    check_heads(shape.heads, shape.heads, shape.hidden // shape.heads, None)
    if table.dtype not in _TABLE_TYPES:
        raise ValueError(f"embeddings of {table.dtype}")
    check(table, table.dtype, (len(table), shape.hidden), "table")
    check(positions, torch.float32, (len(positions), shape.hidden), "positions")
    return _EncoderFields(
        len(layers),
        shape.hidden,
        shape.heads,
        len(table),
        len(positions),
        ACTIVATIONS[shape.activation],
        shape.eps,
        (_LayerFields * len(layers))(*(_layer_fields(shape, layer) for layer in layers)),
        *_pointers(norm, shape),
        positions.data_ptr(),
        table.data_ptr(),
        _TABLE_TYPES[table.dtype],
    )


def _layer_fields(shape: EncoderShape, layer: EncoderLayer) -> _LayerFields:
    return _LayerFields(
        layer.qkv.handle,
        layer.out.handle,
        layer.up.handle,
        layer.down.handle,
        *_pointers(layer.attention_norm, shape),
        *_pointers(layer.output_norm, shape),
    )


def _pointers(norm: Norm, shape: EncoderShape) -> tuple[int, int]:
    for vector, name in ((norm.weight, "a norm's weight"), (norm.bias, "a norm's bias")):
        check(vector, torch.float32, (shape.hidden,), name)
    return norm.weight.data_ptr(), norm.bias.data_ptr()
