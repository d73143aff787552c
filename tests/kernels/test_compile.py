"""Every kernel compiles for Ampere, Hopper and Blackwell without a GPU, and takes no more of one than it should."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("triton", reason="needs triton: PyPI's torch brings it, the CPU wheel does not")

from tests.kernels.compiling import SHARED_LIMIT, compile_for
from tests.kernels.launch_cases import CALLS, launches


@pytest.mark.parametrize("capability", SHARED_LIMIT)
@pytest.mark.parametrize("name", CALLS)
def test_it_compiles_and_fits(name: str, capability: int) -> None:
    found = launches(name)
    assert found
    for launch in found:
        taken = compile_for(launch, capability)
        sys.stdout.write(f"{taken}\n")
        assert taken.spilled == 0, taken
        assert taken.shared <= SHARED_LIMIT[capability], taken
        assert taken.registers <= 255, taken
        assert taken.blocks >= 1, taken


def test_a_launch_is_what_the_launcher_chose() -> None:
    decode, merge = launches("decode, SmolLM2-135M")
    assert (decode.kernel.__name__, merge.kernel.__name__) == ("_decode", "_merge")
    chosen = {name: decode.kwargs[name] for name in ("GROUP", "ROWS", "SIZE", "BLOCK", "BLOCK_SIZE", "SPLIT")}
    assert chosen == {"GROUP": 3, "ROWS": 16, "SIZE": 64, "BLOCK": 64, "BLOCK_SIZE": 16, "SPLIT": True}
