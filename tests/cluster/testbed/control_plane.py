"""etcd, the API server, the controller manager and the scheduler of one run.

Owns their flags, tokens and kubeconfigs. They run in the sandbox and listen on the node's address only.
Knows nothing of the node. Called by cluster.
"""

from __future__ import annotations

import json
import secrets
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import Binaries
from testbed.ready import wait_until
from testbed.sandbox import Sandbox

NODE = "node-1"
API_PORT = 6443
ETCD_PORT = 2379
# user → group; RBAC's own bootstrap bindings give each what it needs, so that a missing right shows here too.
USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "system:authenticated",
    "system:kube-scheduler": "system:authenticated",
    "system:kube-proxy": "system:authenticated",
    f"system:node:{NODE}": "system:nodes",
}


@dataclass(frozen=True)
class ControlPlane:
    """The programs of a control plane and where to run them."""

    binaries: Binaries
    sandbox: Sandbox

    @property
    def folder(self) -> Path:
        """Keys, certificates, tokens and etcd's data."""
        return self.sandbox.run.folder / "control-plane"

    @property
    def url(self) -> str:
        """The API server's, from this machine, the sandbox and the pods alike."""
        return f"https://{self.sandbox.run.node_address}:{API_PORT}"

    @property
    def audit_log(self) -> Path:
        """One line a write."""
        return self.sandbox.run.logs / "audit.jsonl"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one of USERS."""
        return self.sandbox.run.kubeconfig if user == "admin" else self.folder / f"{user.replace(':', '-')}.kubeconfig"

    def start(self) -> None:
        """Start everything and return when the API server is ready."""
        self.folder.mkdir()
        tokens = {user: secrets.token_hex(16) for user in USERS}
        lines = (f'{tokens[user]},{user},{user},"{group}"\n' for user, group in USERS.items())
        (self.folder / "tokens.csv").write_text("".join(lines))
        (self.folder / "tokens.csv").chmod(0o600)
        subprocess.run(["openssl", "genrsa", "-out", str(self._key), "2048"], check=True, capture_output=True)
        self.start_etcd()
        self.start_apiserver()
        for user, token in tokens.items():
            self._write_kubeconfig(user, token)
        self._start_controllers()

    def kill(self, name: str) -> None:
        """End "etcd" or "kube-apiserver" as a power cut would; `start_etcd` and `start_apiserver` bring them back."""
        self.sandbox.send(name, signal.SIGKILL)

    def freeze(self, name: str) -> None:
        """Let a program answer nothing any more, its connections open; until `thaw`."""
        self.sandbox.send(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let it go on."""
        self.sandbox.send(name, signal.SIGCONT)

    @property
    def _key(self) -> Path:
        return self.folder / "service-account.key"

    def _log(self) -> Path:
        return self.sandbox.run.logs / "kube-apiserver.log"

    def start_etcd(self) -> None:
        """With the data that an earlier one has left."""
        url = f"http://{self.sandbox.run.node_address}:{ETCD_PORT}"
        self.sandbox.start(
            "etcd",
            str(self.binaries.path("etcd")),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # what it holds does not outlive the run
        )

    def start_apiserver(self) -> None:
        """And wait until it is ready."""
        run, key = self.sandbox.run, self._key
        apiserver = self.sandbox.start(
            "kube-apiserver",
            str(self.binaries.path("kube-apiserver")),
            f"--etcd-servers=http://{run.node_address}:{ETCD_PORT}",
            f"--bind-address={run.node_address}",
            f"--advertise-address={run.node_address}",
            f"--secure-port={API_PORT}",
            f"--cert-dir={self.folder}",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            f"--service-cluster-ip-range={run.service_range}",
            f"--audit-policy-file={self._audit_policy()}",
            f"--audit-log-path={self.audit_log}",
            "--kubelet-preferred-address-types=InternalIP",  # nothing resolves the node's name
        )
        certificate = self.folder / "apiserver.crt"
        wait_until("the API server", lambda: certificate.exists() and self._is_ready(), apiserver, self._log)

    def _audit_policy(self) -> Path:
        """Who wrote what, once each: the tests count the operator's writes."""
        written = {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]}
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [written, {"level": "None"}],
        }
        file = self.folder / "audit-policy.json"
        file.write_text(json.dumps(policy))
        return file

    def _start_controllers(self) -> None:
        address = self.sandbox.run.node_address
        manager = self.kubeconfig("system:kube-controller-manager")
        self.sandbox.start(
            "kube-controller-manager",
            str(self.binaries.path("kube-controller-manager")),
            f"--kubeconfig={manager}",
            f"--authentication-kubeconfig={manager}",
            f"--authorization-kubeconfig={manager}",
            f"--bind-address={address}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._key}",
            f"--root-ca-file={self.folder / 'apiserver.crt'}",
            "--horizontal-pod-autoscaler-sync-period=5s",
        )
        scheduler = self.kubeconfig("system:kube-scheduler")
        self.sandbox.start(
            "kube-scheduler",
            str(self.binaries.path("kube-scheduler")),
            f"--kubeconfig={scheduler}",
            f"--authentication-kubeconfig={scheduler}",
            f"--authorization-kubeconfig={scheduler}",
            f"--bind-address={address}",
            "--leader-elect=false",
        )

    def _is_ready(self) -> bool:
        token = (self.folder / "tokens.csv").read_text().partition(",")[0]  # the administrator's is the first
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {token}"})
        try:  # It signed its serving certificate itself, so that is its own authority; it may be half written yet.
            trust = ssl.create_default_context(cafile=str(self.folder / "apiserver.crt"))
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
            )
            with opener.open(request, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _write_kubeconfig(self, user: str, token: str) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "apiserver.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        }
        file = self.kubeconfig(user)
        file.write_text(json.dumps(config, indent=1))  # JSON is YAML
        file.chmod(0o600)
