"""CRDs of others that a test installs: the real one, out of its project's Go module, or written by hand where that can't be had.

Owns where each file lies. Nothing of theirs is checked in; go/crds pins the module. Called by the tests.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import MODULES
from testbed.cluster import Cluster
from testbed.ready import eventually
from testbed.toolchain import find_go

BY_HAND = Path(__file__).resolve().parent.parent / "crds"


@dataclass(frozen=True)
class Published:
    """A CRD in a module; `name` as kubectl knows it."""

    name: str
    module: str
    path: str

    def file(self) -> Path:
        """Where it lies, fetched if need be."""
        command = [str(find_go()), "mod", "download", "-json", self.module]
        done = subprocess.run(command, cwd=MODULES / "crds", capture_output=True, text=True, check=True)
        return Path(json.loads(done.stdout)["Dir"]) / self.path


@dataclass(frozen=True)
class ByHand:
    """A CRD of ours with the fields that its project publishes."""

    name: str

    def file(self) -> Path:
        """Where it lies."""
        return BY_HAND / f"{self.name}.yaml"


HTTP_ROUTE = Published(
    "httproutes.gateway.networking.k8s.io",
    "sigs.k8s.io/gateway-api",
    "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
)
POD_MONITOR = ByHand("podmonitors.monitoring.coreos.com")
INFERENCE_POOL = ByHand("inferencepools.inference.networking.k8s.io")


def install_crd(cluster: Cluster, crd: Published | ByHand) -> None:
    """Apply it and return when the API server serves it."""
    cluster.kubectl("apply", "--server-side", "-f", str(crd.file()))
    established = ("wait", "--for=condition=Established", f"crd/{crd.name}", "--timeout=120s")
    # One that has no conditions yet is an error to `kubectl wait`.
    eventually(f"{crd.name} served", lambda: cluster.kubectl(*established))


def remove_crd(cluster: Cluster, crd: Published | ByHand) -> None:
    """Delete it with all its objects."""
    cluster.kubectl("delete", "crd", crd.name, "--ignore-not-found", "--timeout=300s")
