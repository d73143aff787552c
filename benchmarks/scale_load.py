"""Many LLMDeployments at once: their manifests, and applying them as fast as a few connections can.

kubectl spreads what it applies over time; a Git sync or a script does not. Called by `operator_scale` and
tests/cluster/test_scale.py.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.scale_audit import Name

CONNECTIONS = 8
NAMESPACES = 10
API_VERSION = "pagemill.dev/v1alpha1"


def names(count: int) -> list[Name]:
    """Spread over a few namespaces."""
    return [(f"scale-{number % NAMESPACES}", f"llm-{number:04d}") for number in range(count)]


def manifest(name: Name, **spec: Any) -> dict[str, Any]:
    """A chat model on one GPU, as the README's first example."""
    chat = {"model": "meta-llama/Llama-2-7b-chat-hf", "gpuMemoryUtilization": 0.9, "maxModelLen": 4096, "replicas": 1}
    metadata = {"namespace": name[0], "name": name[1]}
    return {"apiVersion": API_VERSION, "kind": "LLMDeployment", "metadata": metadata, "spec": {**chat, **spec}}


def apply(kubeconfig: Path, manifests: list[dict[str, Any]]) -> float:
    """Server-side apply of all; the seconds that it took. AssertionError where one is refused."""
    started = time.monotonic()
    shares = [manifests[offset::CONNECTIONS] for offset in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(lambda share: _apply(kubeconfig, share), shares))
    return time.monotonic() - started


def _apply(kubeconfig: Path, manifests: list[dict[str, Any]]) -> None:
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    connection = http.client.HTTPSConnection(urlsplit(cluster["server"]).netloc, context=trust, timeout=60)
    headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/apply-patch+yaml"}
    for found in manifests:
        metadata = found["metadata"]
        path = f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/llmdeployments/{metadata['name']}"
        connection.request("PATCH", f"{path}?fieldManager=gitops&force=true", json.dumps(found), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in (200, 201), text.decode()
    connection.close()
