"""What the launchers of the Triton kernels share: sizes of tiles and of grids. Called by them alone.

A launch goes to the current CUDA device and stream, so a process that computes on another than device 0 says so with
`torch.cuda.set_device`. Nothing here or in the launchers waits for the device: all of them can be captured in a CUDA graph.
"""

from __future__ import annotations

import functools

import torch

_PROCESSORS_WITHOUT_A_GPU = 132  # an H100's: what the interpreter and compiling without a GPU plan for


def pad(size: int, least: int = 1) -> int:
    """The next power of two, for tl.arange takes no other sizes."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def ceil_div(size: int, part: int) -> int:
    """How many parts cover the size."""
    return -(-size // part)


def warps(elements: int) -> int:
    """Warps for a tile of so many elements: up to 16 a thread, 4 where that fills a warp."""
    return min(16, max(1, pad(ceil_div(elements, 32 * 16))))


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of the device."""
    if device.type != "cuda":
        return _PROCESSORS_WITHOUT_A_GPU
    return _multiprocessors(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)
