"""A whole cluster of one run: made, asked, and ended.

`up` puts the parts together in order; `Cluster` is what tests and the command line hold. Knows nothing of
Pagemill but the image names that it is given. Called by conftest, cluster.py and demo_cluster.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import binaries as programs
from testbed.binaries import Binaries
from testbed.control_plane import NODE, ControlPlane
from testbed.errors import NotReady, TestbedError
from testbed.node import Node
from testbed.packages import ensure_packages, require_root
from testbed.reading import fetch
from testbed.run import Run, claim, discard
from testbed.sandbox import Sandbox, open_sandbox
from testbed.seed import Seed


class CommandFailed(subprocess.CalledProcessError):
    """kubectl or helm said no; shows what it said."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}"


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs. `run` is None for one that was there before and is only used."""

    kubeconfig: Path
    kubectl_program: str
    helm_program: str
    run: Run | None = None
    node: Node | None = None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl's output; CommandFailed when it fails."""
        return self._execute(self.kubectl_program, *arguments, stdin=stdin)

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl says on stderr when it fails, as it must here."""
        try:
            output = self.kubectl(*arguments, stdin=stdin)
        except CommandFailed as refusal:
            return str(refusal.stderr)
        raise AssertionError(f"kubectl {' '.join(arguments)} should have failed; it said {output}")

    def helm(self, *arguments: str) -> str:
        """helm's output."""
        return self._execute(self.helm_program, *arguments)

    def apply(self, manifest: dict[str, Any], namespace: str = "default") -> None:
        """kubectl apply of one object."""
        self.kubectl("apply", "--namespace", namespace, "-f", "-", stdin=json.dumps(manifest))

    def get(self, *arguments: str) -> dict[str, Any]:
        """kubectl get … -o json."""
        answer: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return answer

    def read(self, path: str) -> dict[str, Any]:
        """GET of an API path, an object or a list, as `get` would show it; CommandFailed where that would be."""
        if self.run is None:
            answer: dict[str, Any] = json.loads(self.kubectl("get", "--raw", path))
            return without_managers(answer)
        try:
            status, answer = fetch(self.kubeconfig, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CommandFailed(1, ["GET", path], "", f"{type(error).__name__}: {error}") from error
        if status != http.HTTPStatus.OK:
            raise CommandFailed(1, ["GET", path], "", str(answer.get("message", status)))
        return without_managers(answer)

    def advertise_gpus(self, count: int, node: str = NODE, resource: str = "nvidia.com/gpu") -> None:
        """Make the node offer devices, as a device plugin would."""
        offer = [{"op": "add", "path": f"/status/capacity/{resource.replace('/', '~1')}", "value": str(count)}]
        self.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(offer))

    def kill_container(self, container_id: str) -> None:
        """SIGKILL a container's first process; the id as a pod's status gives it."""
        if not self.node:
            raise NotReady("only a container of our own cluster can be killed")
        bare = container_id.removeprefix("containerd://")
        subprocess.run(
            self.node.sandbox.enter(*self.node.ctr("tasks", "kill", "--signal", "SIGKILL", bare)),
            check=True,
            capture_output=True,
        )

    def process_start(self, container_id: str) -> float:
        """When a container's first process began, in seconds since boot, to a hundredth."""
        if not self.node:
            raise NotReady("only a container of our own cluster can be looked into")
        bare = container_id.removeprefix("containerd://")
        listed = self._inside(*self.node.ctr("tasks", "ls")).splitlines()
        pid = next(line.split()[1] for line in listed if line.startswith(bare))
        # The command's name, in brackets, may hold spaces; the start time is the 20th field after it.
        stat = self._inside("cat", f"/proc/{pid}/stat").rpartition(")")[2].split()
        return int(stat[19]) / os.sysconf("SC_CLK_TCK")

    def _inside(self, *command: str) -> str:
        assert self.node is not None
        return subprocess.run(self.node.sandbox.enter(*command), check=True, capture_output=True, text=True).stdout

    def audit(self) -> list[dict[str, Any]]:
        """Every write that the API server was asked for by somebody it knows, oldest first, as audit events.

        An operator that is uninstalled may find its account gone before it is: its last call is nobody's.
        """
        if not self.node:
            raise NotReady("only a cluster of our own keeps an audit log")
        lines = self.node.control_plane.audit_log.read_text().splitlines()
        return [event for event in map(json.loads, lines) if "username" in event["user"]]

    def close(self) -> None:
        """End the cluster and everything in it."""
        if self.run and self.node:
            discard(self.run)
            self.node.sandbox.reap()

    def _execute(self, program: str, *arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [program, *arguments],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CommandFailed(done.returncode, done.args, done.stdout, done.stderr)
        return done.stdout


def without_managers(answer: dict[str, Any]) -> dict[str, Any]:
    """As kubectl shows objects."""
    for one in (answer, *answer.get("items", ())):
        one["metadata"].pop("managedFields", None)
    return answer


def use_existing(kubeconfig: Path) -> Cluster:
    """A cluster that somebody named in PAGEMILL_TEST_KUBECONFIG."""
    return Cluster(kubeconfig, _client("kubectl"), _client("helm"))


def _client(name: str) -> str:
    """Ours where it has been built, else the machine's: nothing else is needed of a cluster that is there already."""
    built = programs.locate().path(name)
    if found := str(built) if built.exists() else shutil.which(name):
        return found
    raise TestbedError(f"there is no {name} on PATH; `python tests/cluster/cluster.py build` makes one")


def prepare() -> Binaries:
    """All that can be done before a cluster is asked for: rights, system packages, programs."""
    require_root()
    ensure_packages()
    return programs.build()


def up(images: list[str], kept: bool) -> Cluster:
    """Start a cluster with these images; `kept` lets it outlive this process."""
    built = prepare()
    run = claim(kept)
    try:
        return _start(built, run, images, kept)
    except BaseException:
        if not os.environ.get("PAGEMILL_TESTBED_DEBUG"):
            discard(run)
        raise


def _start(built: Binaries, run: Run, images: list[str], kept: bool) -> Cluster:
    sandbox = open_sandbox(run, built.path("pause"), built.search_path(), kept)
    control_plane = ControlPlane(built, sandbox)
    node = Node(built, sandbox, control_plane)
    Seed(built).plant(images, node.containerd_root)
    control_plane.start()
    node.start_containerd()
    node.start_kubelet()
    cluster = Cluster(run.kubeconfig, str(built.path("kubectl")), str(built.path("helm")), run, node)
    _wait_for_node(cluster, sandbox)
    return cluster


def _wait_for_node(cluster: Cluster, sandbox: Sandbox, seconds: float = 300) -> None:
    """Pods can be run and reach the API: the node is Ready, its ClusterIPs answer, and accounts are given out."""
    ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sandbox.require_all()
        with contextlib.suppress(subprocess.CalledProcessError, OSError):
            if cluster.kubectl("get", "node", NODE, "-o", ready) == "True":
                cluster.kubectl("get", "serviceaccount", "default")
                socket.create_connection(sandbox.run.api_service, timeout=1).close()
                return
        time.sleep(0.1)
    raise NotReady(f"the node did not become Ready; see {sandbox.run.logs}/kubelet.log")
