"""KEDA beside a cluster of the testbed: its operator and its metrics adapter, in the cluster's network namespace.

The adapter serves external.metrics.k8s.io by an APIService that leads to it; the controller manager's own HPA controller asks
there. Both end with the cluster's sandbox. Knows nothing of Pagemill. Called by test_keda.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from testbed.binaries import MODULES, Binaries, build
from testbed.cluster import Cluster
from testbed.errors import NotReady
from testbed.ready import await_port, eventually
from testbed.run import Run
from testbed.sandbox import Sandbox
from testbed.toolchain import find_go

NAMESPACE = "keda"
MODULE = "github.com/kedacore/keda/v2"
SERVICE = "keda-metrics-apiserver"
OPERATOR_PROGRAM, ADAPTER_PROGRAM = "keda-operator", "keda-adapter"
API = "external.metrics.k8s.io"
GRPC, HEALTH, ADAPTER, ADAPTER_METRICS = 9666, 8085, 6446, 8086
# The testbed's API server has no certificate to show to another: the adapter must answer whoever asks.
ANYBODY = {"kind": "Group", "name": "system:unauthenticated", "apiGroup": "rbac.authorization.k8s.io"}


def start(cluster: Cluster) -> None:
    """Install and start it, and return when the API server serves its metrics."""
    if cluster.node is None or cluster.run is None:
        raise NotReady("KEDA is started beside clusters of our own only")
    programs = build("keda")
    sandbox, run = cluster.node.sandbox, cluster.run
    for definition in _definitions():
        cluster.kubectl("apply", "--server-side", "-f", str(definition))
    cluster.kubectl("create", "namespace", NAMESPACE)
    certificates = _certificates(run)
    _start_operator(sandbox, programs, certificates)
    _start_adapter(sandbox, programs, certificates)
    _lead_to_adapter(cluster, run)
    available = ("wait", "--for=condition=Available", f"apiservice/v1beta1.{API}", "--timeout=60s")
    eventually(f"{API} served", lambda: cluster.kubectl(*available))


def stop(cluster: Cluster) -> None:
    """End it and take what it served out of the API: a group that nobody answers for holds up every namespace's end."""
    assert cluster.node is not None
    cluster.kubectl("delete", "apiservice", f"v1beta1.{API}")
    cluster.kubectl("delete", "namespace", NAMESPACE)
    for name in (ADAPTER_PROGRAM, OPERATOR_PROGRAM):
        cluster.node.sandbox.send(name, signal.SIGKILL)
    for definition in _definitions():
        cluster.kubectl("delete", "-f", str(definition), "--timeout=300s")


def source() -> Path:
    """The folder of the module that the programs are built of: its CRDs lie there."""
    command = [str(find_go()), "mod", "download", "-json", MODULE]
    listed = subprocess.run(command, cwd=MODULES / "keda", capture_output=True, text=True, check=True)
    return Path(json.loads(listed.stdout)["Dir"])


def _definitions() -> list[Path]:
    return sorted((source() / "config" / "crd" / "bases").glob("*.yaml"))


def _certificates(run: Run) -> Path:
    """One that is its own authority; the adapter shows it to the operator and the operator to the adapter."""
    folder = run.folder / "keda"
    folder.mkdir()
    key, certificate = folder / "tls.key", folder / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=keda"]
    names = ["-addext", f"subjectAltName=IP:{run.node_address}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    (folder / "ca.crt").write_bytes(certificate.read_bytes())
    return folder


def _start_operator(sandbox: Sandbox, programs: Binaries, certificates: Path) -> None:
    address = sandbox.run.node_address
    _start(
        sandbox,
        programs.path(OPERATOR_PROGRAM),
        HEALTH,
        "--enable-prometheus-metrics=false",
        f"--health-probe-bind-address={address}:{HEALTH}",
        f"--metrics-service-bind-address={address}:{GRPC}",
        f"--cert-dir={certificates}",
    )


def _start_adapter(sandbox: Sandbox, programs: Binaries, certificates: Path) -> None:
    address, kubeconfig = sandbox.run.node_address, sandbox.run.kubeconfig
    _start(
        sandbox,
        programs.path(ADAPTER_PROGRAM),
        ADAPTER,
        f"--metrics-service-address={address}:{GRPC}",
        f"--bind-address={address}",
        f"--secure-port={ADAPTER}",
        f"--port={ADAPTER_METRICS}",
        f"--cert-dir={certificates}",
        f"--tls-cert-file={certificates / 'tls.crt'}",
        f"--tls-private-key-file={certificates / 'tls.key'}",
        f"--lister-kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup",
    )


def _start(sandbox: Sandbox, program: Path, port: int, *arguments: str) -> None:
    """Run it with the administrator's rights, and return when it answers on its port."""
    environment = {
        "KUBECONFIG": str(sandbox.run.kubeconfig),
        "WATCH_NAMESPACE": "",
        "POD_NAMESPACE": NAMESPACE,
        "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
    }
    words = [f"{name}={value}" for name, value in environment.items()]
    process = sandbox.start(program.name, "env", *words, str(program), *arguments)

    log = sandbox.run.logs / f"{program.name}.log"
    await_port(program.name, sandbox.run.node_address, port, process, lambda: log)


def _lead_to_adapter(cluster: Cluster, run: Run) -> None:
    """A Service without a selector: the adapter is no pod."""
    port = {"name": "https", "port": 443, "targetPort": ADAPTER}
    cluster.apply(_named("v1", "Service", SERVICE, spec={"ports": [port]}), NAMESPACE)
    endpoints = _named("discovery.k8s.io/v1", "EndpointSlice", SERVICE)
    endpoints["metadata"]["labels"] = {"kubernetes.io/service-name": SERVICE}
    endpoints |= {"addressType": "IPv4", "endpoints": [{"addresses": [run.node_address]}]}
    endpoints["ports"] = [{"name": "https", "port": ADAPTER}]
    cluster.apply(endpoints, NAMESPACE)
    rules = [
        {"apiGroups": [API], "resources": ["*"], "verbs": ["get", "list"]},
        {"nonResourceURLs": ["/apis", "/apis/*", "/openapi/*"], "verbs": ["get"]},
    ]
    role = {"kind": "ClusterRole", "name": "keda-metrics", "apiGroup": "rbac.authorization.k8s.io"}
    rbac = "rbac.authorization.k8s.io/v1"
    cluster.apply(_named(rbac, "ClusterRole", "keda-metrics", rules=rules))
    cluster.apply(_named(rbac, "ClusterRoleBinding", "keda-metrics", roleRef=role, subjects=[ANYBODY]))
    registered = {
        "group": API,
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": SERVICE, "namespace": NAMESPACE},
        "insecureSkipTLSVerify": True,
    }
    cluster.apply(_named("apiregistration.k8s.io/v1", "APIService", f"v1beta1.{API}", spec=registered))


def _named(api_version: str, kind: str, name: str, **body: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **body}
