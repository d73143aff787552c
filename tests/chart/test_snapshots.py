"""What each `ci/` values file renders to, kept as files: a change of the chart shows as a diff that somebody reads.

`PAGEMILL_SNAPSHOTS=write` rewrites them. Left out: the CRD, which is compared elsewhere, and the texts of ConfigMaps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE.parents[1] / "charts" / "pagemill"
VALUES = sorted(CHART.glob("ci/*-values.yaml"))
Render = Callable[..., list[dict[str, Any]]]


def order(found: dict[str, Any]) -> tuple[str, str, str]:
    return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def snapshot(objects: list[dict[str, Any]]) -> str:
    kept = sorted((found for found in objects if found["kind"] != "CustomResourceDefinition"), key=order)
    for found in kept:
        if found["kind"] == "ConfigMap":
            found["data"] = dict.fromkeys(found["data"], "…")
    return yaml.safe_dump_all(kept, width=120, allow_unicode=True)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_chart_renders_as_before(values: Path, render: Render) -> None:
    file = HERE / "snapshots" / f"{values.stem.removesuffix('-values')}.yaml"
    rendered = snapshot(render(values=values))
    if os.environ.get("PAGEMILL_SNAPSHOTS") == "write":
        file.write_text(rendered)
    assert rendered == file.read_text(), "if that is meant: PAGEMILL_SNAPSHOTS=write, and read the diff"


def test_every_snapshot_has_its_values() -> None:
    names = {file.stem for file in HERE.glob("snapshots/*.yaml")}
    assert names == {values.stem.removesuffix("-values") for values in VALUES}
