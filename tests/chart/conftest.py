"""helm, as the cluster tests build it; rendering a chart needs no cluster. Skips where it is not built and can't be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from testbed.binaries import locate
from testbed.cluster import prepare
from testbed.errors import NotPossibleHere
from testbed.images import REPOSITORY

CHART = REPOSITORY / "charts" / "pagemill"
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config) -> str:
    program = locate().path("helm")
    if not program.exists():
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():  # a build of minutes must be seen
            try:
                prepare()
            except NotPossibleHere as reason:
                pytest.skip(str(reason))
    return str(program)


@pytest.fixture(scope="session")
def render(helm: str) -> Render:
    """`render("a=1", "b=2")`: the objects of `helm template` with these values set."""

    def run(*values: str) -> list[dict[str, Any]]:
        sets = [part for value in values for part in ("--set", value)]
        command = [helm, "template", "pagemill", str(CHART), "--namespace", "system", *sets]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [found for found in yaml.safe_load_all(output) if found]

    return run
