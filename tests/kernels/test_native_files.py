"""Libraries' pages that only the start read are given back, and come in again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pagemill_kernels.native import library

_PROGRAM = """
import torch
from pagemill_kernels.native import library

def resident() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssFile:"))

x = torch.ones(64, 64)
assert library.load() is not None
before, product = resident(), x @ x
library.let_go_of_files()
after = resident()
assert torch.equal(x @ x, product)
import decimal, sqlite3  # binds libraries anew
print(before, after)
"""


@pytest.mark.skipif(library.load() is None, reason="the native kernels are not built for this processor")
def test_what_was_only_read_is_given_back_and_comes_in_again() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 4
