"""Where the model computes and in what: the one place that picks device, dtype and threads. Called by `load`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import ModelOptions
from pagemill_server.model import host_limits

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Placement:
    """What was picked."""

    device: torch.device
    dtype: torch.dtype  # of weights, activations and the KV cache
    threads: int  # of each process

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def place(options: ModelOptions) -> Placement:
    """Pick; raises PagemillError(InvalidConfiguration) for what this machine or this version can't do."""
    if options.device not in ("auto", "cpu"):
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"device {options.device} can't be used by this version: set --device cpu or leave it out",
        )
    # float32 for `auto`: on CPU it alone gives a request the same bits whatever runs beside it.
    name = "float32" if options.dtype == "auto" else options.dtype
    if name not in _DTYPES:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"dtype {options.dtype!r} is not one of auto, {', '.join(_DTYPES)}",
        )
    return Placement(torch.device("cpu"), _DTYPES[name], _threads(options.tensor_parallel_size))


def _threads(processes: int) -> int:
    """Of each process: as OMP_NUM_THREADS says, or its share of the cores that are ours or that the container's quota allows."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0))
    quota = host_limits.cpu_quota()
    return max(1, (cores if quota is None else min(cores, int(quota))) // max(1, processes))
