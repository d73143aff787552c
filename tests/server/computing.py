"""Which code computes a test's model: our native kernels or torch, and on how many threads. In the environment, where a start reads
it, so that workers and servers of a test's own do the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from pagemill_server.model import native_kernels
from pagemill_server.model.native_kernels import instruction_set

needs_native = pytest.mark.skipif(
    instruction_set() is None, reason="no native kernels, or not for this processor: make native"
)


@contextmanager
def computing(*, native: bool = True, threads: int | None = None) -> Iterator[None]:
    """For models that are loaded inside. `native` where there are kernels; `threads` of each process."""
    wanted = ({} if native else {"PAGEMILL_NATIVE": "0"}) | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def without_bfloat16() -> Iterator[None]:
    """`--dtype auto` is float32 for models that are loaded inside, with weights of 16 bits as they are: what it is by our kernels
    on a processor that gains nothing by bfloat16."""
    with patch.object(native_kernels, "instruction_set", lambda: "avx2"):
        yield
