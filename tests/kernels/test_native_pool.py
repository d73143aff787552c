"""The pool of threads: it ends whenever it is told to, and its threads take turns with whatever pool comes next."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pagemill_kernels.native import library

pytestmark = pytest.mark.skipif(
    library.load() is None, reason="the native kernels are not built: run `make native` where a C++ compiler is"
)

ENDS = """
from pagemill_kernels.native.matrix import Pool
for _ in range(2000):
    Pool(3)
"""


def test_a_pool_that_is_freed_as_soon_as_it_is_made_ends() -> None:
    """Its threads may not have begun to look for work yet. In a process of its own: one that hangs can be ended."""
    subprocess.run([sys.executable, "-c", ENDS], check=True, timeout=60)
