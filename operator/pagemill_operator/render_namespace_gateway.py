"""The objects of a namespace's gateway: two pods that pass requests on, and what they may see.

Pure: (members, ports, settings) → manifests in the order in which they are applied. Owned by every member, so that the last one's
end removes it, with or without an operator. Called by `namespace_gateway`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagemill.endpoints import METRICS_PATH
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT, KEYS_FOLDER
from pagemill_operator.gateway_members import FIRST_PORT, KEYS_VOLUME, PORTS, Member
from pagemill_operator.labels import (
    API_VERSION,
    FIELD_MANAGER,
    GATEWAY_NAME,
    GATEWAY_PORTS_ANNOTATION,
    KIND,
    MANAGED_BY_LABEL,
    REFUSED_ANNOTATION,
)
from pagemill_operator.settings import Settings
from pagemill_operator.way import GATEWAY_SELECTOR

REPLICAS = 2
RIGHTS = ("ServiceAccount", "Role", "RoleBinding")
ADMIN_PORT_NAME = "admin"
PROGRESS_SECONDS = 120  # in which a pod of it is ready, or something is wrong
GRACE_MARGIN = 15  # seconds beyond the longest drain
_CUT_MARGIN = 5  # of them before the gateway itself cuts what still runs
_RBAC = "rbac.authorization.k8s.io"
_USER = 65532  # the image's own
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def render_gateway(
    namespace: str, members: Sequence[Member], ports: Mapping[str, int], settings: Settings, refused: str = ""
) -> tuple[Manifest, ...]:
    """Everything of it, the account first; nothing where it has no members. `refused`: what of it the cluster has refused."""
    if not members:
        return ()
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("v1", "ServiceAccount", {"automountServiceAccountToken": True}),
        (f"{_RBAC}/v1", "Role", {"rules": _rules()}),
        (f"{_RBAC}/v1", "RoleBinding", _binding(namespace)),
        ("policy/v1", "PodDisruptionBudget", {"spec": _disruption_budget()}),
    ]
    if any(member.network_policy for member in members):
        bodies.append(("networking.k8s.io/v1", "NetworkPolicy", {"spec": _network_policy()}))
    if any(member.pod_monitor for member in members):
        bodies.append(("monitoring.coreos.com/v1", "PodMonitor", {"spec": _pod_monitor()}))
    bodies.append(("apps/v1", "Deployment", {"spec": _deployment(members, settings)}))
    made = [_object(namespace, members, *body) for body in bodies]
    made[-1]["metadata"]["annotations"] = {GATEWAY_PORTS_ANNOTATION: json.dumps(dict(sorted(ports.items())))}
    if refused:
        made[0]["metadata"]["annotations"] = {REFUSED_ANNOTATION: refused}
    return tuple(made)


def _object(
    namespace: str, members: Sequence[Member], api_version: str, kind: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    metadata = {
        "name": GATEWAY_NAME,
        "namespace": namespace,
        "labels": {**GATEWAY_SELECTOR, MANAGED_BY_LABEL: FIELD_MANAGER},
        "ownerReferences": [
            {"apiVersion": API_VERSION, "kind": KIND, "name": member.name, "uid": member.uid} for member in members
        ],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def _rules() -> list[dict[str, Any]]:
    """Who serves, and nothing else. The operator can only grant what it has itself (`cluster.kinds`)."""
    return [
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]


def _binding(namespace: str) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": GATEWAY_NAME},
        "subjects": [{"kind": "ServiceAccount", "name": GATEWAY_NAME, "namespace": namespace}],
    }


def _disruption_budget() -> dict[str, Any]:
    selector = {"matchLabels": GATEWAY_SELECTOR}
    return {"maxUnavailable": 1, "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}


def _network_policy() -> dict[str, Any]:
    """The ports of the deployments, and the one that the operator and Prometheus ask."""
    served = {"port": FIRST_PORT, "endPort": FIRST_PORT + PORTS - 1, "protocol": "TCP"}
    admin = {"port": GATEWAY_ADMIN_PORT, "protocol": "TCP"}
    return {
        "podSelector": {"matchLabels": GATEWAY_SELECTOR},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [served, admin]}],
    }


def _pod_monitor() -> dict[str, Any]:
    endpoint = {"port": ADMIN_PORT_NAME, "path": METRICS_PATH}
    return {"selector": {"matchLabels": GATEWAY_SELECTOR}, "podMetricsEndpoints": [endpoint]}


def _deployment(members: Sequence[Member], settings: Settings) -> dict[str, Any]:
    return {
        "replicas": REPLICAS,
        "paused": False,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        # A pod goes when its successor is ready, and finishes what it runs: a new image or key cuts nothing.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": GATEWAY_SELECTOR},
        "template": {
            "metadata": {"labels": {**GATEWAY_SELECTOR, MANAGED_BY_LABEL: FIELD_MANAGER}},
            "spec": _pod(members, settings),
        },
    }


def _pod(members: Sequence[Member], settings: Settings) -> dict[str, Any]:
    drain = max(member.drain_seconds for member in members)
    pull_secrets = sorted({secret for member in members for secret in member.pull_secrets})
    keys = [(member.name, member.keys_secret) for member in members if member.keys_secret is not None]
    volumes = [
        # Optional, and a whole folder: keys that are not there yet hold up nobody else, and come in when they are.
        {"name": KEYS_VOLUME + name, "secret": {"secretName": secret, "optional": True}}
        for name, secret in keys
    ]
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": GATEWAY_SELECTOR},
    }
    return {
        "serviceAccountName": GATEWAY_NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # so that one deleted while it starts ends at once (render_pod)
        "terminationGracePeriodSeconds": drain + GRACE_MARGIN,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"imagePullSecrets": [{"name": secret} for secret in pull_secrets]} if pull_secrets else {}),
        "topologySpreadConstraints": [spread],
        "containers": [_container(drain, tuple(name for name, _ in keys), settings)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }


def _container(drain: int, with_keys: Sequence[str], settings: Settings) -> dict[str, Any]:
    mounts = [
        {"name": KEYS_VOLUME + name, "mountPath": f"{KEYS_FOLDER}/{name}", "readOnly": True} for name in with_keys
    ]
    alive, ready = ({"httpGet": {"path": path, "port": ADMIN_PORT_NAME}} for path in ("/healthz", "/readyz"))
    pull = {} if settings.image_pull_policy is None else {"imagePullPolicy": settings.image_pull_policy}
    return {
        "name": "gateway",
        "image": settings.gateway_image,
        **pull,
        "command": ["pagemill", "gateway"],
        "args": ["--keys-dir", KEYS_FOLDER, "--grace-seconds", str(drain + _CUT_MARGIN)],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": ADMIN_PORT_NAME, "containerPort": GATEWAY_ADMIN_PORT, "protocol": "TCP"}],
        "startupProbe": {**alive, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 2},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "resources": _RESOURCES,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }
