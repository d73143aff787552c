"""The pod of a replica: one container that serves, hardened to Pod Security's `restricted`.

Pure. Everything here is part of the pod template: a change of this file restarts every model of every user at the next upgrade of
the operator, which is why the golden manifests of tests/operator/golden guard it. Called by `render`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagemill import model_ref
from pagemill.endpoints import (
    HEALTH_PATH,
    HUB_TOKEN_ENV,
    KERNEL_CACHE_ENV,
    MANAGEMENT_PORT,
    MANAGEMENT_TOKEN_ENV,
    MODELS_ENV,
    READY_PATH,
    SERVING_PORT,
    TERMINATION_LOG_ENV,
)
from pagemill_operator import serve_flags
from pagemill_operator.hot_settings import config_map_name
from pagemill_operator.management_token import SECRET_KEY, secret_name
from pagemill_operator.resource import Resource
from pagemill_operator.spec import LLMDeploymentSpec

CONTAINER = "server"
PORT_NAME = "http"
MANAGEMENT_PORT_NAME = "management"
TERMINATION_LOG = "/dev/termination-log"
CACHE_MOUNT = "/models-cache"  # where fetched models go: the claim of modelCache, else the pod's own disk
IMAGE_MODELS = "/models"  # what an image may bring along
# Compiled kernels, kept beside the models: a replica that starts again, or beside others, compiles none.
KERNEL_CACHE = f"{CACHE_MOUNT}/.triton"
POLICY_MOUNT = "/etc/pagemill/policy"  # where the modules of a scheduling policy of the user's own are
GRACE_MARGIN = 15  # seconds beyond lame duck and drain, for the server to end its streams with an error event
_PROBE_PERIOD = 2  # seconds
_UNREADY_AFTER = 2  # failures
UNREADY_SECONDS = _PROBE_PERIOD * _UNREADY_AFTER  # until the kubelet has seen that a replica is no longer ready
_USER = 65532  # the image's own


@dataclass(frozen=True, slots=True)
class Image:
    """What the container runs. Kept from the live Deployment while nothing that restarts has changed."""

    name: str
    pull_policy: str | None


def pod_spec(resource: Resource, image: Image, managed: bool, pinned: str | None = None) -> dict[str, Any]:
    """The template's `spec`. `managed`: with a management port, and the token that it asks for. `pinned`: the model's commit."""
    spec, pod = resource.spec, resource.spec.pod
    account = pod.service_account_name or resource.owner.key.name
    optional = {
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "nodeSelector": pod.node_selector,
        "tolerations": list(pod.tolerations),
        "affinity": pod.affinity,
        "topologySpreadConstraints": list(pod.topology_spread_constraints),
        "runtimeClassName": pod.runtime_class_name,
        "priorityClassName": pod.priority_class_name,
    }
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A pod's first process gets no signal before it has a handler: a pod deleted while it starts would live, and hold its
        # GPU, until its grace period is over. With this the sandbox's process is the first, and a server ends at once.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": grace_seconds(spec),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
            **pod.security_context,
        },
        **{name: value for name, value in optional.items() if value},
        "containers": [_container(resource, image, managed, pinned)],
        "volumes": [*_volumes(resource), *pod.volumes],
    }


def grace_seconds(spec: LLMDeploymentSpec) -> int:
    """How long Kubernetes waits for a stop before it kills."""
    return spec.rollout.lame_duck_seconds + spec.rollout.drain_timeout_seconds + GRACE_MARGIN


def _container(resource: Resource, image: Image, managed: bool, pinned: str | None) -> dict[str, Any]:
    spec = resource.spec
    ports = {PORT_NAME: SERVING_PORT} | ({MANAGEMENT_PORT_NAME: MANAGEMENT_PORT} if managed else {})
    optional = {
        "imagePullPolicy": image.pull_policy,
        "envFrom": list(spec.pod.env_from),
        "resources": _resources(spec),
    }
    return {
        "name": CONTAINER,
        "image": image.name,
        "command": serve_flags.command(spec, pinned),
        "args": serve_flags.arguments(resource, managed),
        "env": _environment(spec, secret_name(resource.owner.key.name) if managed else None),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        **_probes(spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        **{name: value for name, value in optional.items() if value},
        "volumeMounts": [*_mounts(spec), *spec.pod.volume_mounts],
    }


def _resources(spec: LLMDeploymentSpec) -> dict[str, Any]:
    limits = dict(spec.resources.limits)
    if spec.accelerator == "gpu":
        limits[spec.gpu.resource_name] = str(spec.gpu.count)
    groups: dict[str, Mapping[str, str]] = {"requests": spec.resources.requests, "limits": limits}
    return {name: dict(group) for name, group in groups.items() if group}


def _environment(spec: LLMDeploymentSpec, token_secret: str | None) -> list[Mapping[str, Any]]:
    """Ours first; a variable of the user's own with the same name takes its place, but for PYTHONPATH and the token."""
    ours: list[Mapping[str, Any]] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": MODELS_ENV, "value": f"{CACHE_MOUNT}:{IMAGE_MODELS}"},
        {"name": TERMINATION_LOG_ENV, "value": TERMINATION_LOG},
    ]
    if spec.accelerator == "gpu" and spec.model_cache is not None:
        ours.append({"name": KERNEL_CACHE_ENV, "value": KERNEL_CACHE})
    if (secret := spec.hf_token_secret_ref) is not None:
        source = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
        ours.append({"name": HUB_TOKEN_ENV, "valueFrom": source})
    last: list[Mapping[str, Any]] = []
    if spec.scheduling.policy_config_map is not None:
        theirs = [str(one.get("value", "")) for one in spec.pod.env if one["name"] == "PYTHONPATH"]
        last.append({"name": "PYTHONPATH", "value": ":".join((POLICY_MOUNT, *filter(None, theirs)))})
    if token_secret is not None:
        source = {"secretKeyRef": {"name": token_secret, "key": SECRET_KEY}}
        last.append({"name": MANAGEMENT_TOKEN_ENV, "valueFrom": source})
    named = {variable["name"]: variable for variable in (*ours, *spec.pod.env, *last)}
    return list(named.values())


def _probes(spec: LLMDeploymentSpec) -> dict[str, Any]:
    """`/health` answers as soon as the port is bound and turns 503 when loading stalls, so the startup budget is the spec's."""
    health: dict[str, Any] = {"httpGet": {"path": HEALTH_PATH, "port": PORT_NAME}}
    ready: dict[str, Any] = {"httpGet": {"path": READY_PATH, "port": PORT_NAME}}
    budget = math.ceil(spec.startup.timeout_seconds / _PROBE_PERIOD)
    return {
        "startupProbe": {**health, "periodSeconds": _PROBE_PERIOD, "timeoutSeconds": 5, "failureThreshold": budget},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {
            **ready,
            "periodSeconds": _PROBE_PERIOD,
            "timeoutSeconds": 3,
            "failureThreshold": _UNREADY_AFTER,
        },
    }


def _volumes(resource: Resource) -> list[dict[str, Any]]:
    spec, cache = resource.spec, resource.spec.model_cache
    shm = {"medium": "Memory", "sizeLimit": f"{spec.pod.shm_size_mib}Mi"}
    models: dict[str, Any] = {"emptyDir": {}}
    if cache is not None:
        models = {"persistentVolumeClaim": {"claimName": cache.existing_claim or claim_name(resource)}}
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": shm},
        {"name": "models", **models},
        {"name": "settings", "configMap": {"name": config_map_name(resource.owner.key.name)}},
    ]
    if (secret := spec.api_keys_secret_ref) is not None:
        volumes.append({"name": "api-keys", "secret": {"secretName": secret.name}})
    if (policy := spec.scheduling.policy_config_map) is not None:
        volumes.append({"name": "policy", "configMap": {"name": policy}})
    ref = model_ref.parse(spec.model)
    if ref.kind == "pvc":
        claim = {"claimName": ref.location, "readOnly": True}
        volumes.append({"name": "model", "persistentVolumeClaim": claim})
    elif ref.kind == "oci":
        volumes.append({"name": "model", "image": {"reference": ref.location, "pullPolicy": "IfNotPresent"}})
    return volumes


def _mounts(spec: LLMDeploymentSpec) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "models", "mountPath": CACHE_MOUNT},
        {"name": "settings", "mountPath": serve_flags.SETTINGS_MOUNT, "readOnly": True},
    ]
    if spec.api_keys_secret_ref is not None:
        # The whole folder: a mount of single keys would never change with the Secret.
        mounts.append({"name": "api-keys", "mountPath": serve_flags.API_KEYS_MOUNT, "readOnly": True})
    if spec.scheduling.policy_config_map is not None:
        mounts.append({"name": "policy", "mountPath": POLICY_MOUNT, "readOnly": True})
    if model_ref.parse(spec.model).kind in ("pvc", "oci"):
        mounts.append({"name": "model", "mountPath": serve_flags.MODEL_MOUNT, "readOnly": True})
    return mounts


def claim_name(resource: Resource) -> str:
    """The claim that the operator makes for `modelCache.size`."""
    return f"{resource.owner.key.name}-models"
