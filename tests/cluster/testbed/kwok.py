"""A cluster without a kubelet: the real control plane, and kwok, whose nodes and pods only say that they run.

For what a thousand deployments cost the operator and the API. Owns kwok's flags, its stages (those of its own module), the fake
nodes, and where their pods' addresses lead: to this run's own loopback, so that whoever listens there answers for every pod,
and without a listener every connection is refused. Called by benchmarks/operator_scale.py and test_scale.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from testbed import binaries
from testbed.cluster import Cluster, prepare
from testbed.control_plane import ControlPlane
from testbed.node import Node
from testbed.ready import eventually
from testbed.run import Run, claim, discard
from testbed.sandbox import Sandbox, open_sandbox
from testbed.toolchain import find_go

MODULE = "sigs.k8s.io/kwok"
STAGES = ("node/fast/node-initialize.yaml", *(f"pod/fast/pod-{step}.yaml" for step in ("ready", "complete", "delete")))
# Inside the run's own network namespace, so that two runs may have the same. A run's usual range has 254 Services.
POD_RANGE = "10.240.0.0/14"
SERVICE_RANGE = "10.244.0.0/16"


def up(nodes: int) -> Cluster:
    """Start a control plane with so many fake nodes; ended by `Cluster.close`."""
    built, kwok = prepare(), binaries.build("kwok").path("kwok")
    run = claim(kept=False)
    try:
        return _start(built, kwok, run, nodes)
    except BaseException:
        if not os.environ.get("PAGEMILL_TESTBED_DEBUG"):
            discard(run)
        raise


def _start(built: binaries.Binaries, kwok: Path, run: Run, nodes: int) -> Cluster:
    sandbox = open_sandbox(run, built.path("pause"), built.search_path(), kept=False)
    control_plane = ControlPlane(built, sandbox)
    control_plane.start()
    cluster = Cluster(
        run.kubeconfig,
        str(built.path("kubectl")),
        str(built.path("helm")),
        run,
        Node(built, sandbox, control_plane),  # never started: it knows where the audit log is
    )
    subprocess.run(sandbox.enter("ip", "route", "add", "local", POD_RANGE, "dev", "lo", network_only=True), check=True)
    services = {"metadata": {"name": "scale"}, "spec": {"cidrs": [SERVICE_RANGE]}}
    cluster.apply({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", **services})
    stages = [argument for stage in STAGES for argument in ("--config", str(_stages() / stage))]
    flags = ("--kubeconfig", str(run.kubeconfig), "--manage-all-nodes", "--cidr", POD_RANGE)
    sandbox.start("kwok", str(kwok), *flags, "--node-lease-duration-seconds", "40", *stages)
    cluster.kubectl(
        "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": fake_nodes(nodes)})
    )
    eventually("the fake nodes", lambda: _ready(cluster, sandbox) >= nodes or None, seconds=120)
    return cluster


def fake_nodes(count: int) -> list[dict[str, object]]:
    """Nodes with more room than any test asks for, GPUs too."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"fake-{number}", "labels": {"type": "kwok", "kubernetes.io/os": "linux"}},
            "status": {"allocatable": room, "capacity": room},
        }
        for number in range(count)
    ]


def _ready(cluster: Cluster, sandbox: Sandbox) -> int:
    sandbox.require_all()
    status = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}'
    return cluster.kubectl("get", "nodes", "-o", f"jsonpath={status}").split().count("True")


def _stages() -> Path:
    """The folder of stages in the module that kwok was built from."""
    listed = subprocess.run(
        [str(find_go()), "list", "-m", "-f", "{{.Dir}}", MODULE],
        cwd=binaries.MODULES / "kwok",
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(listed.stdout.strip()) / "kustomize" / "stage"
