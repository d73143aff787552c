"""In what a model computes and what its weights are kept in: one decision, a function of what was asked and of the machine.

Pure. Called by `device`, which knows the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.failures import FailureReason, PagemillError
from pagemill.weight_storage import QUANTIZATIONS

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the decision depends on."""

    kernels: (
        str | None
    )  # the instruction set that our kernels compute with, which may be less than it has; None: there are none
    vendor: str = ""  # as /proc/cpuinfo names it


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What was decided."""

    dtype: str  # of products, of what lies between them, and of the KV cache
    weights: str  # what matrices are kept in
    table: str  # and an embedding table that is no matrix
    kernels: str | None  # the native kernels that compute; None: torch
    why: str = ""  # that dtype, where it was left to us


def choose(
    dtype: str, quantization: str, kept: str | None, machine: Machine, *, bfloat16_is_ours: bool = True
) -> Arithmetic:
    """`kept` is the type that the checkpoint's weights are kept in where nobody asks for another; None where the model is none of
    those that our kernels compute. `bfloat16_is_ours`: the kernels have that arithmetic for all of its products and its attention.
    Raises PagemillError(InvalidConfiguration) for what can't be had."""
    _check(dtype, quantization, machine)
    kernels = None if kept is None else machine.kernels
    name, why = _best(kernels, machine.vendor, bfloat16_is_ours) if dtype == "auto" else (dtype, "")
    if kept is None or kernels is None or name == "float16":  # the kernels have no arithmetic of float16
        return Arithmetic(name, "int8" if quantization == "int8" else name, name, None, why)
    table = kept if dtype == "auto" and name == "float32" else name
    return Arithmetic(name, "int8" if quantization == "int8" else table, table, kernels, why)


def _best(kernels: str | None, vendor: str, bfloat16_is_ours: bool) -> tuple[str, str]:
    """For `auto`: the faster of the arithmetics in which a request has the same bits whatever runs beside it, and why. By torch
    that is float32 alone. Figures: docs/decisions/014."""
    if kernels is None:
        return "float32", "torch computes"
    if not bfloat16_is_ours:
        return "float32", "the kernels have no bfloat16 for this model"
    if kernels == "amx_bf16":
        return "bfloat16", "tiles multiply it fastest"
    if kernels != "avx512_bf16":
        return "float32", "the kernels' vectors have no bfloat16"
    if vendor == "AuthenticAMD":
        return "bfloat16", "vectors multiply it fastest"
    return "float32", "vectors multiply bfloat16 no faster"  # Intel's, whose tiles are not to be had


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
