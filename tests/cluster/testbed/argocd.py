"""Argo CD beside a cluster of the testbed: its application controller, repo server and a redis, in the cluster's network namespace.

Core mode: no API server and no UI, Applications are read from the cluster. They end with the cluster's sandbox. Knows nothing of
Pagemill. Called by test_argocd.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.binaries import MODULES, build
from testbed.cluster import Cluster
from testbed.errors import NotReady
from testbed.packages import ensure_packages
from testbed.ready import await_port, eventually
from testbed.sandbox import Sandbox
from testbed.toolchain import find_go

NAMESPACE = "argocd"
MODULE = "github.com/argoproj/argo-cd/v3"
RESYNC = 5  # seconds between two looks at Git and the cluster
PART_OF = {"app.kubernetes.io/part-of": "argocd"}  # Argo CD does not see its own settings without it
REDIS, REPO_SERVER, REPO_METRICS, CONTROLLER_METRICS = 6379, 8081, 8084, 8082


@dataclass(frozen=True)
class Application:
    """One Application by name."""

    cluster: Cluster
    name: str

    def get(self) -> dict[str, Any]:
        return self.cluster.read(f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/applications/{self.name}")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().get("status") or {}
        return found

    def resource(self, kind: str, name: str) -> dict[str, Any]:
        """What it says of one object; empty while it says nothing."""
        found = self.status().get("resources", ())
        return next((dict(one) for one in found if (one["kind"], one["name"]) == (kind, name)), {})

    def refresh(self) -> None:
        """Have it look at Git now, as a webhook of the Git server would."""
        at_once = "argocd.argoproj.io/refresh=hard"
        self.cluster.kubectl("annotate", "applications.argoproj.io", self.name, "-n", NAMESPACE, "--overwrite", at_once)

    def await_state(self, sync: str, health: str, revision: str | None = None, seconds: float = 600) -> dict[str, Any]:
        """Its status once it is in both, of this commit."""

        def look() -> dict[str, Any]:
            status = self.status()
            compared = status.get("sync", {})
            revisions = [*compared.get("revisions", ()), compared.get("revision")]
            of_commit = revision is None or revision in revisions
            if of_commit and (compared.get("status"), health_of(status)) == (sync, health):
                return status
            raise LookupError(describe(status))

        return eventually(f"application {self.name}: {sync}, {health}", look, seconds)


def health_of(status: dict[str, Any]) -> str:
    """Healthy, Progressing, Degraded … of the whole; empty until it has been looked at."""
    return str(status.get("health", {}).get("status", ""))


def healths(status: dict[str, Any]) -> dict[str, str]:
    """The same of each object that has one, by kind and name."""
    listed = status.get("resources", ())
    return {f"{one['kind']} {one['name']}": one["health"]["status"] for one in listed if "health" in one}


def describe(status: dict[str, Any]) -> str:
    """A line for whoever reads a failed test."""
    operation = status.get("operationState", {})
    wrong = [
        f"{one['kind']} {one['name']} {one.get('status')} {one.get('health', {})}"
        for one in status.get("resources", ())
        if one.get("status") != "Synced" or one.get("health", {}).get("status", "Healthy") != "Healthy"
    ]
    said = [condition["message"] for condition in status.get("conditions", ())]
    phase = f"{operation.get('phase')} {operation.get('message')}"
    return f"{status.get('sync', {}).get('status')}, {status.get('health', {})}; {phase}; {wrong}; {said}"


@dataclass(frozen=True)
class ArgoCD:
    """Argo CD that runs beside a cluster."""

    cluster: Cluster
    program: Path

    def apply(self, application: dict[str, Any]) -> Application:
        self.cluster.apply(application, NAMESPACE)
        return Application(self.cluster, application["metadata"]["name"])


def start(cluster: Cluster, settings: dict[str, str]) -> ArgoCD:
    """Install and start it; `settings` is what argocd-cm holds."""
    if cluster.node is None or cluster.run is None:
        raise NotReady("Argo CD is started beside clusters of our own only")
    ensure_packages("redis-server", "git")
    program = build("argocd").path("argocd")
    _install(cluster, settings)
    sandbox, address = cluster.node.sandbox, cluster.run.node_address
    redis = sandbox.start(
        "redis", "redis-server", "--bind", address, "--port", str(REDIS), "--save", "", "--protected-mode", "no"
    )
    _await_port(sandbox, "redis", redis, REDIS)
    repo_server = _start(
        sandbox,
        program,
        "argocd-repo-server",
        "--disable-tls",
        f"--address={address}",
        f"--port={REPO_SERVER}",
        f"--metrics-address={address}",
        f"--metrics-port={REPO_METRICS}",
        f"--redis={address}:{REDIS}",
        f"--revision-cache-expiration={RESYNC}s",
    )
    _await_port(sandbox, "argocd-repo-server", repo_server, REPO_SERVER)
    controller = _start(
        sandbox,
        program,
        "argocd-application-controller",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--namespace={NAMESPACE}",
        f"--repo-server={address}:{REPO_SERVER}",
        "--repo-server-plaintext",
        f"--redis={address}:{REDIS}",
        f"--app-resync={RESYNC}",
        "--app-resync-jitter=0",
        "--persist-resource-health",  # so that an Application says which object ails, and why
        f"--metrics-port={CONTROLLER_METRICS}",
    )
    _await_port(sandbox, "argocd-application-controller", controller, CONTROLLER_METRICS)
    return ArgoCD(cluster, program)


def source() -> Path:
    """The folder of the module that the program is built of: its CRDs lie there."""
    module = MODULES / "argocd"
    listed = subprocess.run(
        [str(find_go()), "mod", "download", "-json", MODULE], cwd=module, capture_output=True, text=True, check=True
    )
    return Path(json.loads(listed.stdout)["Dir"])


def _install(cluster: Cluster, settings: dict[str, str]) -> None:
    for definition in sorted((source() / "manifests" / "crds").glob("*-crd.yaml")):
        cluster.kubectl("apply", "--server-side", "-f", str(definition))
    cluster.kubectl("create", "namespace", NAMESPACE)
    for name, data in (("argocd-cm", settings), ("argocd-rbac-cm", {}), ("argocd-cmd-params-cm", {})):
        cluster.apply(_named("v1", "ConfigMap", name, data=data), NAMESPACE)
    key = b64encode(secrets.token_bytes(32)).decode()
    cluster.apply(_named("v1", "Secret", "argocd-secret", stringData={"server.secretkey": key}), NAMESPACE)
    anything = {"group": "*", "kind": "*"}
    project = {
        "sourceRepos": ["*"],
        "destinations": [{"server": "*", "namespace": "*"}],
        "clusterResourceWhitelist": [anything],
    }
    default = _named("argoproj.io/v1alpha1", "AppProject", "default", spec=project)

    def made() -> bool:
        """The API server serves a new kind a while after it was told of it, and says so to kubectl later still."""
        cluster.apply(default, NAMESPACE)
        return True

    eventually("the default project", made)


def _named(api_version: str, kind: str, name: str, **body: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": PART_OF}, **body}


def _start(sandbox: Sandbox, program: Path, role: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run it in this role, with folders of its own for what it wants to write."""
    folder = sandbox.run.folder / "argocd" / role
    environment = {
        "ARGOCD_BINARY_NAME": role,
        "ARGOCD_FAKE_IN_CLUSTER": "true",  # the cluster it runs in is the kubeconfig's: it is no pod
        "KUBECONFIG": str(sandbox.run.kubeconfig),
        "ARGOCD_GPG_ENABLED": "false",
        "TMPDIR": str(folder / "tmp"),
    }
    for name in ("GNUPGHOME", "TLS_DATA_PATH", "SSH_DATA_PATH", "GPG_DATA_PATH"):
        environment[f"ARGOCD_{name}"] = str(folder / name.lower())
    environment["ARGOCD_PLUGINSOCKFILEPATH"] = str(folder / "plugins")
    for path in (value for value in environment.values() if value.startswith(str(folder))):
        Path(path).mkdir(parents=True, exist_ok=True)
    words = [f"{name}={value}" for name, value in environment.items()]
    return sandbox.start(role, "env", *words, str(program), *arguments)


def _await_port(sandbox: Sandbox, name: str, process: subprocess.Popen[bytes], port: int) -> None:
    await_port(name, sandbox.run.node_address, port, process, lambda: sandbox.run.logs / f"{name}.log")
