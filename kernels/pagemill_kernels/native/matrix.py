"""Products with weights that the native library has packed, and the pool of threads that computes them.

A row of a product has the same bits whatever rows stand beside it, on any number of threads; between instruction sets they may
differ. Called by the server's model; `decoder` and `encoder` take the handles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum

import torch

from pagemill_kernels.native.library import loaded

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}  # native.h's Type


class Epilogue(IntEnum):
    """What becomes of a product p, as native.h has it."""

    STORE = 0  # y = p
    ADD = 1  # y += p
    SWIGLU = 2  # y[i] = silu(p[i]) * p[i + out/2], of a paired matrix
    GELU = 3  # y = gelu(p)
    GELU_TANH = 4  # the same by tanh
    RELU = 5  # y = max(p, 0)


class Pool:
    """Threads. One product at a time."""

    def __init__(self, threads: int) -> None:
        """`threads` counts the caller's own. ValueError where it is none."""
        if threads < 1:
            raise ValueError(f"a pool of {threads} threads")
        library = loaded()
        self.threads = threads
        self.handle: int | None = library.pm_pool_new(threads)
        if self.handle is None:
            raise MemoryError(f"no {threads} threads can be started")
        _free_with(self, library.pm_pool_free, self.handle)


class Matrix:
    """A weight [out, in] packed for this processor, and a bias.

    `stored` as float32, bfloat16 or float16 it is what it was, rounded where it was wider; as int8 each output has a scale, its
    largest magnitude / 127. Arithmetic is float32, or bfloat16: products of bfloat16, for which x is rounded, added up in float32.
    """

    def __init__(
        self,
        weight: torch.Tensor,  # [out, in], float32, bfloat16 or float16; copied
        bias: torch.Tensor | None = None,  # float32 [out]; copied
        stored: torch.dtype | None = None,  # None: the weight's own
        arithmetic: torch.dtype = torch.float32,  # or bfloat16, where stored is bfloat16 or int8
        paired: bool = False,  # for Epilogue.SWIGLU: gates, then as many ups
    ) -> None:
        """ValueError for what the library has no code for."""
        stored = weight.dtype if stored is None else stored
        _check_weight(weight, stored, arithmetic, paired)
        out, inputs = weight.shape
        if bias is not None:
            _check_floats(bias, (out,), "the bias")
        weight, bias = weight.detach().contiguous(), None if bias is None else bias.detach().contiguous()
        library = loaded()
        self.shape, self.stored, self.arithmetic, self.paired = (out, inputs), stored, arithmetic, paired
        self.handle: int | None = library.pm_matrix_new(
            weight.data_ptr(),
            TYPES[weight.dtype],
            out,
            inputs,
            None if bias is None else bias.data_ptr(),
            TYPES[stored],
            TYPES[arithmetic],
            paired,
        )
        if self.handle is None:
            raise MemoryError(f"no memory for a matrix {out} x {inputs}")
        self.bytes: int = library.pm_matrix_bytes(self.handle)
        _free_with(self, library.pm_matrix_free, self.handle)

    def linear(self, pool: Pool, x: torch.Tensor) -> torch.Tensor:
        """float32 [rows, in] → float32 [rows, out]: x times the transposed weight, plus the bias."""
        y = torch.empty((len(x), self.shape[0]))
        return self.product(pool, x, y)

    def product(
        self,
        pool: Pool,
        x: torch.Tensor,  # float32 [rows, in]
        y: torch.Tensor,  # [rows, out], SWIGLU: [rows, out / 2]; float32, or bfloat16 but for ADD; written
        epilogue: Epilogue = Epilogue.STORE,
    ) -> torch.Tensor:  # y
        """As `linear`, into y."""
        out, inputs = self.shape
        _check_floats(x, (len(x), inputs), "x")
        across = out // 2 if epilogue is Epilogue.SWIGLU else out
        if epilogue is Epilogue.SWIGLU and not self.paired:
            raise ValueError("swiglu needs a paired matrix")
        if y.dtype is not torch.bfloat16 or epilogue is Epilogue.ADD:
            _check_floats(y, (len(x), across), "y")
        elif y.shape != (len(x), across):
            raise ValueError(f"y is {tuple(y.shape)}, not {(len(x), across)}")
        if not y.is_contiguous():
            raise ValueError("y is not contiguous")
        x = x.detach().contiguous()
        scratch = torch.empty_like(x, dtype=torch.bfloat16) if self.arithmetic is torch.bfloat16 else None
        loaded().pm_product(
            pool.handle,
            self.handle,
            x.data_ptr(),
            len(x),
            y.data_ptr(),
            TYPES[y.dtype],
            epilogue,
            None if scratch is None else scratch.data_ptr(),
        )
        return y

    def row(self, output: int) -> torch.Tensor:
        """The weights of one output as they are stored, float32 [in]. IndexError for one that there is not."""
        out, inputs = self.shape
        if not 0 <= output < out:
            raise IndexError(f"there are outputs from 0 to {out - 1}, not {output}")
        row = torch.empty(inputs)
        loaded().pm_matrix_row(self.handle, output, row.data_ptr())
        return row


def _check_weight(weight: torch.Tensor, stored: torch.dtype, arithmetic: torch.dtype, paired: bool) -> None:
    if weight.dim() != 2 or 0 in weight.shape or weight.device.type != "cpu":
        raise ValueError(f"a weight {tuple(weight.shape)} on {weight.device}: [out, in] on cpu is wanted")
    if weight.dtype not in TYPES or weight.dtype is torch.int8:
        raise ValueError(f"a weight of {weight.dtype}: float32, bfloat16 and float16 are possible")
    if stored not in TYPES:
        raise ValueError(f"a weight stored as {stored}: float32, bfloat16, float16 and int8 are possible")
    pairs = arithmetic is torch.bfloat16 and stored in (torch.bfloat16, torch.int8)
    if arithmetic is not torch.float32 and not pairs:
        raise ValueError(f"arithmetic in {arithmetic} with a weight stored as {stored}")
    if paired and weight.shape[0] % 2 != 0:
        raise ValueError(f"{weight.shape[0]} outputs are not gates and as many ups")


def _check_floats(tensor: torch.Tensor, shape: tuple[int, ...], name: str) -> None:
    if tensor.dtype is not torch.float32 or tensor.device.type != "cpu" or tuple(tensor.shape) != shape:
        found = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name} is {found}; float32 {shape} on cpu is wanted")


def _free_with(owner: object, free: Callable[[int], None], handle: int) -> None:
    """Not at the interpreter's end: another thread may still be computing then."""
    weakref.finalize(owner, free, handle).atexit = False
