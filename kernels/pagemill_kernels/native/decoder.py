"""Whole steps of a Llama decoder by the native library; the server's `model/llama.py` is its twin in torch.

Knows the library's structures and what must be kept alive for them, not checkpoints, schedulers or caches' owners. A token's result
follows from its sequence alone, to the last bit. Called by the server's model.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagemill_kernels.native.attention import (
    NO_MEMORY,
    CacheFields,
    StepLayout,
    cache_fields,
    check,
    check_heads,
)
from pagemill_kernels.native.library import loaded
from pagemill_kernels.native.matrix import Matrix, Pool

_TABLE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # native.h's Type
_NO_TOKEN, _NO_POSITION = -1, -2


class _LayerFields(ctypes.Structure):
    """native.h's DecoderLayer."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "mlp_norm", "q_norm", "k_norm", "cos", "sin")),
        ("scale", ctypes.c_float),
        ("window", ctypes.c_int),
    ]


class _DecoderFields(ctypes.Structure):
    """native.h's Decoder."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "positions")),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(_LayerFields)),
        ("last_norm", ctypes.c_void_p),
        ("embedding", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_type", ctypes.c_int),
        ("head", ctypes.c_void_p),
    ]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes in elements. hidden and head_dim are multiples of 16."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float  # of all norms


@dataclass(frozen=True, slots=True)
class Rotary:
    """By position, float32 [positions, head_dim]; sin's first half negated, as `reference.rotary` wants it."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer. Every matrix has the same arithmetic."""

    qkv: Matrix  # [(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values
    out: Matrix  # [hidden, heads * head_dim]
    gate_up: Matrix  # [2 * inner, hidden], paired
    down: Matrix  # [hidden, inner]
    input_norm: torch.Tensor  # float32 [hidden]
    mlp_norm: torch.Tensor  # float32 [hidden]
    rotary: Rotary
    scale: float | None = None  # of the scores; None: 1/sqrt(head_dim)
    window: int | None = None  # tokens that a query sees, itself included; None: all before it
    q_norm: torch.Tensor | None = None  # float32 [head_dim]: of each query head (Qwen3)
    k_norm: torch.Tensor | None = None


class LayerCaches:
    """The caches of all layers, as `step` takes them: made once an engine."""

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Each [kv_heads, blocks, block_size, head_dim], float32 or bfloat16; their memory is written by steps."""
        self.tensors = tuple(zip(keys, values, strict=True))
        self.shapes = frozenset((pair[0].shape[0], pair[0].shape[3]) for pair in self.tensors)  # (kv_heads, head_dim)
        self.fields = (CacheFields * len(self.tensors))(*(cache_fields(*pair) for pair in self.tensors))


class NativeDecoder:
    """All layers, embedding and head. One step at a time."""

    def __init__(
        self,
        pool: Pool,
        shape: DecoderShape,
        layers: Sequence[DecoderLayer],
        last_norm: torch.Tensor,  # float32 [hidden]
        embedding: Matrix
        | torch.Tensor,  # the head itself where they are tied; else [vocab, hidden], 16 bits or float32
        head: Matrix,  # [vocab, hidden]
    ) -> None:
        """ValueError where the parts do not fit each other. Nothing is copied; all is kept alive."""
        self.shape, self._pool = shape, pool
        self._kept = (tuple(layers), last_norm, embedding, head)
        fields = _decoder_fields(shape, layers, last_norm, embedding, head)
        self._library = library = loaded()
        self._handle = library.pm_decoder_new(ctypes.addressof(fields))
        if not self._handle:
            raise ValueError("the decoder's matrices do not fit its shape, or differ in their arithmetic")
        weakref.finalize(self, library.pm_decoder_free, self._handle).atexit = False  # another thread may still compute

    def step(
        self,
        token_ids: torch.Tensor,  # int64 [T]
        positions: torch.Tensor,  # int64 [T]: of each token in its own sequence
        layout: StepLayout,
        caches: LayerCaches,
        layers: int | None = None,  # only the first so many run; None: all
    ) -> torch.Tensor:  # float32 [T, hidden], after the last norm
        """Compute the tokens and write their keys and values. IndexError for a token or position that there is not."""
        tokens = layout.fields.tokens
        for tensor, name in ((token_ids, "token_ids"), (positions, "positions")):
            check(tensor, torch.int64, (tokens,), name)
        count = len(self._kept[0]) if layers is None else min(layers, len(self._kept[0]))
        self._check_caches(caches, count)
        hidden = torch.empty((tokens, self.shape.hidden))
        code = self._library.pm_decoder_step(
            self._handle,
            self._pool.handle,
            token_ids.data_ptr(),
            positions.data_ptr(),
            ctypes.addressof(layout.fields),
            ctypes.addressof(caches.fields),
            count,
            hidden.data_ptr(),
        )
        _raise(code)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states float32 [R, hidden] → float32 [R, vocab]."""
        rows = hidden.shape[0]  # len() of a tensor is a function in Python, which takes three times as long
        check(hidden, torch.float32, (rows, self.shape.hidden), "hidden")
        out = torch.empty((rows, self.shape.vocab))
        code = self._library.pm_decoder_logits(self._handle, self._pool.handle, hidden.data_ptr(), rows, out.data_ptr())
        _raise(code)
        return out

    @property
    def workspace_bytes(self) -> int:
        """What is kept between steps, sized by the widest so far; threads' scratch (under 1 MiB each) apart."""
        return int(self._library.pm_decoder_workspace(self._handle))

    def measure(self, seconds: ctypes.Array[ctypes.c_double] | None) -> None:
        """Add later steps' seconds to [products, attention, rest]; None: no longer."""
        self._measured = seconds  # kept alive
        self._library.pm_decoder_measure(self._handle, None if seconds is None else ctypes.addressof(seconds))

    def _check_caches(self, caches: LayerCaches, layers: int) -> None:
        shape = self.shape
        if len(caches.tensors) < layers:
            raise ValueError(f"{len(caches.tensors)} caches for {layers} layers")
        if not caches.shapes <= {(shape.kv_heads, shape.head_dim)}:
            raise ValueError(f"caches of {sorted(caches.shapes)} for {shape.kv_heads} heads of {shape.head_dim}")


def _decoder_fields(
    shape: DecoderShape,
    layers: Sequence[DecoderLayer],
    last_norm: torch.Tensor,
    embedding: Matrix | torch.Tensor,
    head: Matrix,
) -> _DecoderFields:
    array = (_LayerFields * len(layers))(*(_layer_fields(shape, layer) for layer in layers))
    check(last_norm, torch.float32, (shape.hidden,), "last_norm")
    if isinstance(embedding, torch.Tensor):
        if embedding.dtype not in _TABLE_TYPES:
            raise ValueError(f"embeddings of {embedding.dtype}")
        check(embedding, embedding.dtype, (shape.vocab, shape.hidden), "embedding")
    return _DecoderFields(
        layers=len(layers),
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab=shape.vocab,
        positions=min(len(layer.rotary.cos) for layer in layers),
        eps=shape.eps,
        layer=array,
        last_norm=last_norm.data_ptr(),
        embedding=embedding.handle if isinstance(embedding, Matrix) else None,
        table=None if isinstance(embedding, Matrix) else embedding.data_ptr(),
        table_type=0 if isinstance(embedding, Matrix) else _TABLE_TYPES[embedding.dtype],
        head=head.handle,
    )


def _layer_fields(shape: DecoderShape, layer: DecoderLayer) -> _LayerFields:
    check_heads(shape.heads, shape.kv_heads, shape.head_dim, layer.window)
    for norm, name, size in (
        (layer.input_norm, "input_norm", shape.hidden),
        (layer.mlp_norm, "mlp_norm", shape.hidden),
        (layer.q_norm, "q_norm", shape.head_dim),
        (layer.k_norm, "k_norm", shape.head_dim),
    ):
        if norm is not None:
            check(norm, torch.float32, (size,), name)
    for table, name in ((layer.rotary.cos, "cos"), (layer.rotary.sin, "sin")):
        check(table, torch.float32, (len(layer.rotary.cos), shape.head_dim), name)
    return _LayerFields(
        layer.qkv.handle,
        layer.out.handle,
        layer.gate_up.handle,
        layer.down.handle,
        layer.input_norm.data_ptr(),
        layer.mlp_norm.data_ptr(),
        None if layer.q_norm is None else layer.q_norm.data_ptr(),
        None if layer.k_norm is None else layer.k_norm.data_ptr(),
        layer.rotary.cos.data_ptr(),
        layer.rotary.sin.data_ptr(),
        shape.head_dim**-0.5 if layer.scale is None else layer.scale,
        layer.window or 0,
    )


def _raise(code: int) -> None:
    if code == _NO_TOKEN:
        raise IndexError("a token is outside the vocabulary")
    if code == _NO_POSITION:
        raise IndexError("a position is outside the rotary tables")
    if code == NO_MEMORY:
        raise MemoryError("no memory for a step's workspace")
