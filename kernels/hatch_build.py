"""The wheel's build hook: takes the compiled CPU kernels along, and makes them first where a C++ compiler is.

A wheel without them is for every machine, and torch computes there. Named in pyproject.toml; the standard library and hatchling.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = "pagemill_kernels/native"
_TAG = "py3-none-linux_x86_64"  # no Python is linked in


class NativeKernels(BuildHookInterface[Any]):
    """Of the wheel alone; an editable install finds the libraries where `make native` puts them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or self.target_name != "wheel":
            return
        build = _program(Path(self.root) / "kernels" / _PACKAGE / "build.py")
        try:
            build.build()
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"without native kernels: {error}")
        # Those of these sources: whatever else lies there would never be loaded.
        found = [path for path in map(build.library, build.INSTRUCTION_SETS) if path.exists()]
        build_data["force_include"] |= {str(path): f"{_PACKAGE}/lib/{path.name}" for path in found}
        if found:
            build_data["pure_python"], build_data["tag"] = False, _TAG


def _program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
