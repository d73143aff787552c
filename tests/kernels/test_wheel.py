"""A wheel takes the CPU kernels of its sources along where they are or can be compiled, and is for every machine where not."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest
from hatchling.bridge.app import Application
from hatchling.builders.wheel import WheelBuilder

from pagemill_kernels.native import build

ROOT = Path(__file__).resolve().parents[2]
NATIVE = "kernels/pagemill_kernels/native"


def hook_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "kernels/hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hooked(root: Path, version: str = "standard") -> dict[str, Any]:
    """What the hook makes of a build's data for a checkout at `root`."""
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    unread: Any = None
    hook = hook_module().NativeKernels(str(root), {}, unread, unread, str(root), "wheel", Application())
    hook.initialize(version, data)
    return data


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The kernels' sources, uncompiled."""
    shutil.copytree(ROOT / NATIVE, tmp_path / NATIVE, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    return tmp_path


def put_libraries(checkout: Path) -> list[str]:
    folder = checkout / NATIVE / "lib"
    folder.mkdir()
    names = [build.library(name).name for name in build.INSTRUCTION_SETS]
    for name in (*names, "libpagemill-avx2-0123456789ab.so"):
        (folder / name).write_bytes(b"\x7fELF")
    return names


def test_the_libraries_of_these_sources_are_in_it_and_it_is_for_this_kind_of_machine(checkout: Path) -> None:
    names = put_libraries(checkout)
    data = hooked(checkout)
    assert sorted(data["force_include"].values()) == sorted(f"pagemill_kernels/native/lib/{name}" for name in names)
    assert (data["pure_python"], data["tag"]) == (False, "py3-none-linux_x86_64")


def test_without_a_compiler_it_is_for_every_machine(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert hooked(checkout) == {"force_include": {}, "pure_python": True}
    assert "without native kernels: no C++ compiler" in "".join(capsys.readouterr())


def test_an_editable_install_takes_none_along(checkout: Path) -> None:
    put_libraries(checkout)
    assert hooked(checkout, "editable") == {"force_include": {}, "pure_python": True}


@pytest.mark.skipif(
    not all(build.library(name).exists() for name in build.INSTRUCTION_SETS), reason="not compiled: make native"
)
def test_the_wheel_of_this_checkout(tmp_path: Path) -> None:
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert made.endswith("-py3-none-linux_x86_64.whl")
    with ZipFile(made) as wheel:
        names = wheel.namelist()
    assert len(names) == len(set(names))
    libraries = {Path(name).name for name in names if name.endswith(".so")}
    assert libraries == {build.library(name).name for name in build.INSTRUCTION_SETS}
    # A library's name holds a digest of its sources, which is taken again where the wheel is installed.
    assert {path.name for path in build.sources()} <= {Path(name).name for name in names}
