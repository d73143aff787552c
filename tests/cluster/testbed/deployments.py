"""LLMDeployments as the tests and the demo see them: by kubectl, through status and the Service's address.

Called by the tests and demo_cluster.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from testbed.cluster import Cluster
from testbed.ready import eventually

LABEL = "pagemill.dev/deployment"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Deployed:
    """One LLMDeployment by name."""

    cluster: Cluster
    namespace: str
    name: str

    def get(self) -> dict[str, Any]:
        """The whole object."""
        return self.cluster.read(f"/apis/pagemill.dev/v1alpha1/namespaces/{self.namespace}/llmdeployments/{self.name}")

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the generation that is now; empty until the operator has spoken of it."""
        found = self.get()
        for condition in found.get("status", {}).get("conditions", ()):
            if condition["type"] == kind and condition["observedGeneration"] == found["metadata"]["generation"]:
                return dict(condition)
        return {}

    def await_condition(self, kind: str, status: str, *reasons: str, seconds: float = 600) -> dict[str, Any]:
        """The condition once it has this status and, if any are given, one of these reasons."""

        def look() -> dict[str, Any]:
            found = self.condition(kind)
            if found.get("status") == status and (not reasons or found["reason"] in reasons):
                return found
            raise LookupError(f"{kind}={found.get('status')} {found.get('reason')}: {found.get('message')}")

        return eventually(f"{self.name}: {kind}={status} {' or '.join(reasons)}", look, seconds)

    def pods(self) -> list[dict[str, Any]]:
        """Those of its replicas; the preflight's has another name."""
        selector = quote(f"{LABEL}={self.name},app.kubernetes.io/name=pagemill-server")
        return list(self.cluster.read(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}")["items"])

    def staying(self) -> list[dict[str, Any]]:
        """Those that are not on their way out: one that ends its streams is a pod for as long as that takes."""
        return [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]

    def address(self) -> str:
        """http://ClusterIP:port of its Service."""
        service = self.cluster.get("service", self.name, "-n", self.namespace)["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    """A small LLMDeployment on CPU; `spec` replaces and adds."""
    small = {"model": MODEL, "accelerator": "cpu", "maxModelLen": 512, "engine": {"kvCacheGiB": 0.1}}
    metadata = {"name": name}
    return {
        "apiVersion": "pagemill.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": metadata,
        "spec": {**small, **spec},
    }


def deploy(cluster: Cluster, namespace: str, name: str, **spec: Any) -> Deployed:
    """Apply such a manifest."""
    cluster.apply(manifest(name, **spec), namespace)
    return Deployed(cluster, namespace, name)
