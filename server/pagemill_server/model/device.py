"""Where the model computes and in what: the one place that picks device, dtype, kernels and threads. Called by `load`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles
from pagemill.weight_storage import kept_type
from pagemill_kernels.native.library import processor_vendor
from pagemill_server.config import ModelOptions
from pagemill_server.model import cuda_device, host_limits, native_kernels
from pagemill_server.model.arithmetic import Machine, choose
from pagemill_server.model.native_attention import can_attend

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Placement:
    """What was picked."""

    device: torch.device
    dtype: torch.dtype  # of activations and the KV cache, and of weights where `weights` says no other
    threads: int  # of each process
    weights: str = ""  # what matrices are kept in: "float32", "bfloat16", "float16", "int8"
    table: str = ""  # and an embedding table that is no matrix
    kernels: str | None = None  # the native kernels that compute, by their instruction set; None: torch
    why: str = ""  # that dtype, where it was left to us

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        by = "torch" if self.kernels is None else f"native {self.kernels}"
        chosen = f" (auto: {self.why})" if self.why else ""
        return f"{self.dtype_name} arithmetic{chosen}, weights in {self.weights or self.dtype_name}, {by}"


def place(options: ModelOptions, files: ModelFiles) -> Placement:
    """Pick for a decoder's files.

    Raises PagemillError(InvalidConfiguration) for what this machine or this version can't do.
    """
    if cuda_device.is_chosen(options):
        device, dtype = cuda_device.choose(options)
        return Placement(device, dtype, _threads(1))
    kept = kept_type(files.tensors) if files.config.native else None
    ours = can_attend(files.config.head_dim, torch.bfloat16)  # else torch attends
    return _on_cpu(options, kept, bfloat16_is_ours=ours)


def place_encoder(options: ModelOptions, files: ModelFiles, *, native: bool) -> Placement:
    """The same for an encoder's, always on the CPU. `native`: our kernels have code for its sizes."""
    if options.device not in ("auto", "cpu"):
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"device {options.device} can't compute an encoder in this version: set --device cpu or leave it out",
        )
    kept = kept_type(files.tensors) if native else None
    return _on_cpu(options, kept, bfloat16_is_ours=True)


def _on_cpu(options: ModelOptions, kept: str | None, *, bfloat16_is_ours: bool) -> Placement:
    machine = Machine(native_kernels.instruction_set(), processor_vendor())
    found = choose(options.dtype, options.quantization, kept, machine, bfloat16_is_ours=bfloat16_is_ours)
    threads = _threads(options.tensor_parallel_size)
    return Placement(
        torch.device("cpu"), _DTYPES[found.dtype], threads, found.weights, found.table, found.kernels, found.why
    )


def _threads(processes: int) -> int:
    """Of each process: as OMP_NUM_THREADS says, or its share of the cores that are ours or that the container's quota allows."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0))
    quota = host_limits.cpu_quota()
    return max(1, (cores if quota is None else min(cores, int(quota))) // max(1, processes))
