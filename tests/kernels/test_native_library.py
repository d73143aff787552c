"""What is read of the processor before a library is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill_kernels.native import library

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC, flags : none
flags\t\t: fpu avx2 avx512_bf16
bugs\t\t: flags_of_old

processor\t: 1
vendor_id\t: GenuineIntel
flags\t\t: sse
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(library, "Path", lambda name: file if name == "/proc/cpuinfo" else Path(name))
    return file


def test_the_first_processor_is_read(cpuinfo: Path) -> None:
    cpuinfo.write_text(CPUINFO)
    assert library.processor_flags() == {"fpu", "avx2", "avx512_bf16"}
    assert library.processor_vendor() == "AuthenticAMD"


def test_where_nothing_is_said_nothing_is_known(cpuinfo: Path) -> None:
    assert (library.processor_flags(), library.processor_vendor()) == (frozenset(), "")
    cpuinfo.write_text("processor\t: 0\nHardware\t: something else\n")
    assert (library.processor_flags(), library.processor_vendor()) == (frozenset(), "")
