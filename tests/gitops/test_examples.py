"""The examples of GitOps are what they say: overlays build, Applications name what is there, models are accepted.

tests/cluster/test_argocd.py installs them, test_no_drift.py applies every one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemill_operator.manifest_file import load_manifests

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))  # `testbed` is no package that is installed

from testbed.binaries import locate

REPOSITORY = Path(__file__).resolve().parents[2]
ARGOCD = REPOSITORY / "examples" / "argocd"
OVERLAYS = REPOSITORY / "examples" / "kustomize" / "overlays"
APPLICATIONS = ("application.yaml", "externally-scaled.yaml")


@pytest.fixture(scope="module")
def kubectl() -> str:
    built = locate().path("kubectl")
    found = str(built) if built.exists() else shutil.which("kubectl")
    if not found:
        pytest.skip("no kubectl: `python tests/cluster/cluster.py build` makes one")
    return found


def overlay(kubectl: str, name: str) -> dict[str, dict[str, Any]]:
    """The objects of an overlay, by kind."""
    built = subprocess.run([kubectl, "kustomize", str(OVERLAYS / name)], capture_output=True, text=True, check=True)
    assert not built.stderr, "kustomize has something to say of it"
    return {found["kind"]: found for found in yaml.safe_load_all(built.stdout)}


def application(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ARGOCD / name).read_text(encoding="utf-8"))
    return found


def test_staging_is_the_base_made_smaller(kubectl: str) -> None:
    found = overlay(kubectl, "staging")
    assert found["LLMDeployment"]["metadata"]["namespace"] == found["Namespace"]["metadata"]["name"] == "models-staging"
    spec = found["LLMDeployment"]["spec"]
    assert (spec["maxModelLen"], spec["engine"], "replicas" in spec) == (512, {"kvCacheGiB": 0.1}, False)


def test_production_is_the_base_twice(kubectl: str) -> None:
    found = overlay(kubectl, "production")
    assert found["LLMDeployment"]["metadata"]["namespace"] == found["Namespace"]["metadata"]["name"] == "models"
    spec = found["LLMDeployment"]["spec"]
    assert (spec["replicas"], spec["rollout"], spec["maxModelLen"]) == (2, {"strategy": "Surge"}, 2048)


@pytest.mark.parametrize("name", ["staging", "production"])
def test_the_operator_accepts_what_an_overlay_makes(name: str, kubectl: str, tmp_path: Path) -> None:
    made = tmp_path / "made.yaml"
    made.write_text(yaml.safe_dump(overlay(kubectl, name)["LLMDeployment"]))
    assert load_manifests(str(made))


@pytest.mark.parametrize("path", sorted((ARGOCD / "models").glob("*.yaml")), ids=lambda path: path.stem)
def test_models_come_after_the_operator_and_are_accepted(path: Path) -> None:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    if found["kind"] != "LLMDeployment":
        return
    assert load_manifests(str(path))
    assert int(found["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]) > 0


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_names_folders_that_are_there(name: str) -> None:
    spec = application(name)["spec"]
    for source in spec.get("sources") or [spec["source"]]:
        assert (REPOSITORY / source["path"]).is_dir()
    assert spec["syncPolicy"]["automated"] == {"prune": True, "selfHeal": True}


def test_externally_scaled_replicas_are_neither_compared_nor_written() -> None:
    spec = application("externally-scaled.yaml")["spec"]
    (ignored,) = spec["ignoreDifferences"]
    assert ignored == {"group": "pagemill.dev", "kind": "LLMDeployment", "jsonPointers": ["/spec/replicas"]}
    assert "RespectIgnoreDifferences=true" in spec["syncPolicy"]["syncOptions"]


def test_no_application_is_forgotten_here() -> None:
    assert {path.name for path in ARGOCD.glob("*.yaml")} == set(APPLICATIONS)
