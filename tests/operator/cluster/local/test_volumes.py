"""A pod's ConfigMaps as files of this machine, and a container that is led to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.cluster.local.volumes import NoSuchConfigMap, lay_out, moved
from tests.operator.cluster.local import manifests
from tests.operator.cluster.local.conftest import Machine

CONTAINER: dict[str, Any] = {
    "name": "server",
    "args": ["--file", "/etc/settings/a.json", "/etc/settings", "/etc/settings-of-others", "--x=/etc/settings"],
    "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}, {"name": "tmp", "mountPath": "/tmp"}],
}
SPEC: dict[str, Any] = {
    "containers": [CONTAINER],
    "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "settings", "configMap": {"name": "mine"}}],
}


def test_files_are_written_and_paths_lead_to_them(tmp_path: Path) -> None:
    places = lay_out(SPEC, {"mine": {"a.json": "{}"}}.get, tmp_path)
    assert places == {"/etc/settings": str(tmp_path / "settings")}
    assert (tmp_path / "settings" / "a.json").read_text() == "{}"
    assert moved(CONTAINER, places)["args"] == [
        *("--file", f"{tmp_path}/settings/a.json", f"{tmp_path}/settings"),
        *("/etc/settings-of-others", "--x=/etc/settings"),
    ]
    lay_out(SPEC, {"mine": {"a.json": "{1}"}}.get, tmp_path)
    assert (tmp_path / "settings" / "a.json").read_text() == "{1}"


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoSuchConfigMap, match="ConfigMap mine is not there"):
        lay_out(SPEC, lambda name: None, tmp_path)
    optional = {**SPEC, "volumes": [{"name": "settings", "configMap": {"name": "mine", "optional": True}}]}
    assert list(lay_out(optional, lambda name: None, tmp_path)) == ["/etc/settings"]


def with_a_crash_file(config_map: str) -> dict[str, Any]:
    """The tiny server, told to crash with the text of a file that a ConfigMap holds."""
    deployment = manifests.deployment("--crash", "/etc/settings/crash")
    spec = deployment["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"] = [{"name": "settings", "mountPath": "/etc/settings"}]
    spec["volumes"] = [{"name": "settings", "configMap": {"name": config_map}}]
    return deployment


def config_map(**data: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "default"}, "data": data}


async def test_a_container_finds_it_where_it_mounts_it(machine: Machine) -> None:
    await machine.cluster.apply(config_map(crash="said by a file"))
    await machine.cluster.apply(with_a_crash_file("mine"))

    def crashed() -> bool:
        return any("said by a file" in str(entry.get("lastState")) for entry in machine.containers())

    await machine.until(crashed)


async def test_a_pod_that_mounts_one_that_is_missing_says_so(machine: Machine) -> None:
    await machine.cluster.apply(with_a_crash_file("other"))

    def told() -> bool:
        return any("ConfigMap other is not there" in str(entry["state"]) for entry in machine.containers())

    await machine.until(told)
