"""Hand-written children of an LLMDeployment, as the operator would apply them, with the tiny server as the container's command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pagemill_operator.labels import API_VERSION, DEPLOYMENT_LABEL, KIND

TINY_SERVER = Path(__file__).resolve().parents[2] / "tiny_server.py"


def resource(name: str = "tiny") -> dict[str, Any]:
    """The LLMDeployment that owns the rest."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": "org/tiny"},
    }


def deployment(
    *flags: str,
    name: str = "tiny",
    owner_uid: str = "",
    replicas: int = 1,
    surge: int = 0,
    unavailable: int = 1,
    grace: int = 5,
    resources: dict[str, Any] | None = None,
    env: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A Deployment of the tiny server, probed often so that tests are quick."""
    labels = {DEPLOYMENT_LABEL: name}
    owners = [{"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": owner_uid}] if owner_uid else []
    container = {
        "name": "server",
        "command": [sys.executable, str(TINY_SERVER)],
        "args": ["--port", "8000", "--host=0.0.0.0", *flags],
        "env": env or [],
        "resources": resources or {},
        "startupProbe": _probe("/health", failures=100),
        "livenessProbe": _probe("/health", failures=2),
        "readinessProbe": _probe("/ready", failures=1),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": grace},
            },
        },
    }


def _probe(path: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": 0.05,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }
