"""The chart, rendered: by the helm that the cluster tests build where there is one, else by Helm's code as a library (`sdk`)."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from testbed.binaries import locate

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "pagemill"
Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """`helm("lint", …)`: what it said, and its exit status."""
    built = locate().path("helm")
    program = [str(built)] if built.exists() else [sys.executable, str(Path(__file__).parent / "sdk.py")]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """`render("a=1", "b=2", values=FILE)`: the objects that the release `pagemill` in the namespace `system` would have."""

    @functools.cache
    def text(sets: tuple[str, ...], values: Path | None) -> str:
        extra = [part for value in sets for part in ("--set", value)] + (["--values", str(values)] if values else [])
        done = helm("template", "pagemill", str(CHART), "--namespace", "system", *extra)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(*sets: str, values: Path | None = None) -> Objects:
        return [found for found in yaml.safe_load_all(text(sets, values)) if found]

    return run
