"""Argo CD's health check in a Lua as bare as Argo CD's, over statuses that the reconcile writes and over the recorded ones.

tests/cluster/test_argocd.py runs the same check inside Argo CD.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime  # 5.1, as Argo CD's

from tests.gitops.statuses import CASES, CHECK, PATCH, SETTING, file_of, patch, recorded

SCRIPT = (CHECK / "health.lua").read_text(encoding="utf-8")
RECORDED: dict[str, dict[str, str]] = {
    test["inputPath"].removeprefix("testdata/").removesuffix(".yaml"): test["healthStatus"]
    for test in yaml.safe_load((CHECK / "health_test.yaml").read_text(encoding="utf-8"))["tests"]
}
READ = ("Ready", "Degraded")  # the conditions that the check reads


def health(manifest: dict[str, Any]) -> dict[str, str]:
    """What the check returns for an object."""
    lua = LuaRuntime()
    # What Argo CD does not open. Its strings have no methods either.
    lua.execute("string, math, io, debug, coroutine, package = nil; getmetatable('').__index = nil")
    lua.globals()["obj"] = lua.table_from(manifest, recursive=True)
    return dict(lua.execute(SCRIPT).items())


def said(manifest: dict[str, Any]) -> list[tuple[str, str, str]]:
    conditions = manifest.get("status", {}).get("conditions", ())
    return [(one["type"], one["status"], one["reason"]) for one in conditions if one["type"] in READ]


@pytest.mark.parametrize("name", CASES)
async def test_a_status_of_the_reconcile_has_the_health_of_its_name(name: str) -> None:
    found = health(await recorded(name))
    assert found["status"].lower() == name.partition("-")[0]
    assert found["message"]


@pytest.mark.parametrize("name", CASES)
async def test_the_recorded_status_is_one_that_the_reconcile_writes(name: str) -> None:
    assert said(yaml.safe_load(file_of(name).read_text(encoding="utf-8"))) == said(await recorded(name)), "make golden"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_status_has_the_health_that_upstreams_test_expects(name: str) -> None:
    assert health(yaml.safe_load(file_of(name).read_text(encoding="utf-8"))) == RECORDED[name]


def test_every_recorded_status_is_expected_and_none_is_left_over() -> None:
    assert set(RECORDED) == set(CASES) == {file.stem for file in (CHECK / "testdata").glob("*")}


async def test_conditions_in_another_order_or_missing_have_the_same_health_or_none_yet() -> None:
    manifest = await recorded("degraded-rollout-failed")
    manifest["status"]["conditions"].reverse()
    assert health(manifest)["status"] == "Degraded"
    manifest["status"]["conditions"] = []
    assert health(manifest) == {"status": "Progressing", "message": "the status has no conditions yet"}


async def test_a_suspended_deployment_whose_spec_is_refused_says_why() -> None:
    manifest = await recorded("degraded-spec-refused")
    manifest["spec"]["suspend"] = True
    assert health(manifest)["status"] == "Degraded"


def test_the_patch_of_argo_cds_settings_holds_the_check() -> None:
    assert PATCH.read_text(encoding="utf-8") == patch(), "make golden"
    assert yaml.safe_load(patch()) == {"data": {SETTING: SCRIPT}}
