"""In what a model computes and what its weights are kept in: one decision, a function of what was asked and of the machine.

Pure. Called by `device`, which knows the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.failures import FailureReason, PagemillError
from pagemill.weight_storage import QUANTIZATIONS

DTYPES = ("float32", "bfloat16", "float16")
# Processors whose tiles multiply bfloat16 many times as fast as vectors multiply float32.
_TILES = frozenset(("amx_tile", "amx_bf16"))


@dataclass(frozen=True, slots=True)
class Machine:
    """What the decision depends on."""

    flags: frozenset[str]  # as /proc/cpuinfo names what the processor can do
    kernels: (
        str | None
    )  # the instruction set that our native kernels were built for; None: there are none for this processor


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What was decided."""

    dtype: str  # of products, of what lies between them, and of the KV cache
    weights: str  # what matrices are kept in
    table: str  # and an embedding table that is no matrix
    kernels: str | None  # the native kernels that compute; None: torch


def choose(dtype: str, quantization: str, kept: str | None, machine: Machine) -> Arithmetic:
    """`kept` is the type that the checkpoint's weights are kept in where nobody asks for another; None where the model is none of
    those that our kernels compute. Raises PagemillError(InvalidConfiguration) for what can't be had."""
    _check(dtype, quantization, machine)
    name = _best(kept, machine) if dtype == "auto" else dtype
    if kept is None or machine.kernels is None or name == "float16":  # the kernels have no arithmetic of float16
        return Arithmetic(name, "int8" if quantization == "int8" else name, name, None)
    table = kept if dtype == "auto" and name == "float32" else name
    return Arithmetic(name, "int8" if quantization == "int8" else table, table, machine.kernels)


def _best(kept: str | None, machine: Machine) -> str:
    """For `auto`: bfloat16 where the processor has tiles for it. Elsewhere float32, which gives a request the same bits whatever
    runs beside it by torch too; where vectors multiply bfloat16 it takes twice as long for prompts (docs/benchmarks.md)."""
    return "bfloat16" if kept is not None and machine.flags >= _TILES else "float32"


def _check(dtype: str, quantization: str, machine: Machine) -> None:
    if dtype not in ("auto", *DTYPES):
        raise _invalid(f"dtype {dtype!r} is not one of auto, {', '.join(DTYPES)}")
    if quantization not in QUANTIZATIONS:
        raise _invalid(f"quantization {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
    if quantization == "int8" and dtype == "float16":
        raise _invalid(
            "weights of int8 are multiplied in float32 or bfloat16: set --dtype to one of them or leave it out"
        )
    if quantization == "int8" and machine.kernels is None:
        raise _invalid(
            "weights of int8 are multiplied by the native kernels, which are not built or not for this processor: "
            "run `make native` where a C++ compiler is, or leave --quantization out"
        )


def _invalid(why: str) -> PagemillError:
    return PagemillError(FailureReason.INVALID_CONFIGURATION, why)
