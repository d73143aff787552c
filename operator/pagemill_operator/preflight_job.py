"""The Job that looks at a model: a replica's pod with less, on CPU, that runs `pagemill preflight` once.

Pure. Same image, env, mounts, account and security as a replica has, so that what it finds is what a replica would find; no GPU, no
keys, no probes. A Job is never changed: another try, or another template, has another name. Called by `preflight`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagemill import model_ref
from pagemill.endpoints import SERVING_PORT
from pagemill_operator import serve_flags
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import (
    API_VERSION,
    DEPLOYMENT_LABEL,
    FIELD_MANAGER,
    KIND,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    PREFLIGHT_NAME,
    SERVER_NAME,
)
from pagemill_operator.render_pod import Image, pod_spec
from pagemill_operator.resource import Resource
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.template_hash import template_hash
from pagemill_operator.waiting import Trouble

SUBJECT_ANNOTATION = "pagemill.dev/preflight-of"  # on a Job: what it looks at, as `subject` says
ATTEMPT_ANNOTATION = "pagemill.dev/preflight-attempt"  # how many have failed before it
TROUBLE_ANNOTATION = "pagemill.dev/preflight-trouble"  # how the one before it failed
_NAME_LIMIT = 57  # characters: a Job's pods get six more
_NUMBER = re.compile(r"[0-9]{1,6}")
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,99}")
_VOLUMES = ("tmp", "models", "model")  # of the operator's own
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
_KEPT = (
    *(
        "serviceAccountName",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "securityContext",
        "imagePullSecrets",
    ),
    *("nodeSelector", "priorityClassName", "shareProcessNamespace"),
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One look. What it is told beside the spec: sizes in bytes."""

    number: int = 0
    memory: int | None = None  # of the device
    revision: str | None = None  # of the model, known from before
    before: Trouble | None = None  # how the last attempt failed


def subject(resource: Resource) -> str:
    """16 hexadecimal digits of what a preflight is about: the template, and what of the rest of the spec it is told."""
    owner, spec = resource.owner, resource.spec
    words = (owner.key.namespace, owner.key.name, template_hash(spec), spec.gpu.memory_gib)
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def job(resource: Resource, settings: Settings, attempt: Attempt) -> dict[str, Any]:
    """The manifest."""
    owner, about = resource.owner, subject(resource)
    told = {
        SUBJECT_ANNOTATION: about,
        ATTEMPT_ANNOTATION: str(attempt.number),
        TROUBLE_ANNOTATION: None
        if attempt.before is None
        else json.dumps({"reason": attempt.before.reason, "message": attempt.before.message}),
    }
    labels = {DEPLOYMENT_LABEL: owner.key.name, NAME_LABEL: PREFLIGHT_NAME, MANAGED_BY_LABEL: FIELD_MANAGER}
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.key.name, "uid": owner.uid}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": _name(owner.key.name, f"{about}/{attempt.number}"),
            "namespace": owner.key.namespace,
            "labels": {**owner.labels, **labels},
            "annotations": {name: text for name, text in told.items() if text is not None},
            "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "backoffLimit": 0,  # the operator tries again, and says when
            "template": {
                "metadata": {
                    "labels": {**resource.spec.pod.labels, **labels},
                    "annotations": dict(resource.spec.pod.annotations),
                },
                "spec": _pod(resource, settings, attempt),
            },
        },
    }


def number_of(manifest: Manifest) -> int:
    """Which attempt a live Job is."""
    text = str((manifest["metadata"].get("annotations") or {}).get(ATTEMPT_ANNOTATION, "0"))
    return int(text) if _NUMBER.fullmatch(text) else 0


def trouble_before(manifest: Manifest) -> Trouble | None:
    """How the attempt before a live Job failed."""
    try:
        body = json.loads((manifest["metadata"].get("annotations") or {})[TROUBLE_ANNOTATION])
        reason, message = body["reason"], str(body["message"])
        return Trouble(reason, message) if _REASON.fullmatch(reason) else None
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def _name(owner: str, words: str) -> str:
    hashed = hashlib.sha256(words.encode()).hexdigest()[:8]
    return f"{owner[: _NAME_LIMIT - 19].rstrip('-.')}-preflight-{hashed}"


def _pod(resource: Resource, settings: Settings, attempt: Attempt) -> dict[str, Any]:
    spec = resource.spec
    image = Image(spec.image or settings.image(spec.accelerator), spec.image_pull_policy or settings.image_pull_policy)
    replica = pod_spec(resource, image, managed=False)
    wanted = {*_VOLUMES, *(volume["name"] for volume in spec.pod.volumes)}
    (container,) = replica["containers"]
    pod = {name: replica[name] for name in _KEPT if name in replica}
    optional = {"affinity": _affinity(resource), "tolerations": _tolerations(spec)}
    return {
        **pod,
        **{name: value for name, value in optional.items() if value},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": "preflight",
                "image": container["image"],
                "command": ["pagemill", "preflight", container["command"][-1]],
                "args": [*_arguments(spec, attempt), *serve_flags.arguments(resource, managed=False)],
                "env": container["env"],
                "securityContext": container["securityContext"],
                "terminationMessagePath": container["terminationMessagePath"],
                "terminationMessagePolicy": container["terminationMessagePolicy"],
                **{name: container[name] for name in ("imagePullPolicy", "envFrom") if name in container},
                "resources": _RESOURCES,
                "volumeMounts": [mount for mount in container["volumeMounts"] if mount["name"] in wanted],
            }
        ],
        "volumes": [_volume(volume, spec) for volume in replica["volumes"] if volume["name"] in wanted],
    }


def _arguments(spec: LLMDeploymentSpec, attempt: Attempt) -> list[str]:
    told = ["--progress-port", str(SERVING_PORT)]
    if _fetches(spec):
        told.append("--fetch")
    if attempt.memory is not None:
        told += ["--memory", str(attempt.memory)]
    if attempt.revision is not None:
        told += ["--revision", attempt.revision]
    return told


def _fetches(spec: LLMDeploymentSpec) -> bool:
    """Whether replicas share a cache that the Job can write: one that takes a single pod is in use by the one that serves."""
    return model_ref.parse(spec.model).kind == "hub" and spec.model_cache is not None and not _is_single(spec)


def _is_single(spec: LLMDeploymentSpec) -> bool:
    return spec.model_cache is not None and spec.model_cache.access_mode == "ReadWriteOncePod"


def _volume(volume: Mapping[str, Any], spec: LLMDeploymentSpec) -> Mapping[str, Any]:
    return {"name": "models", "emptyDir": {}} if volume["name"] == "models" and _is_single(spec) else volume


def _affinity(resource: Resource) -> dict[str, Any]:
    """To which nodes a replica may go. What keeps replicas apart, or beside others, is no matter for a look.

    A claim is best filled from where it is used: where a replica has it, else where a GPU is, since a volume that is made
    when its first pod comes may never leave that node.
    """
    spec = resource.spec
    nodes = dict((spec.pod.affinity or {}).get("nodeAffinity") or {})
    if not _fetches(spec):
        return {"nodeAffinity": nodes} if nodes else {}
    ours = {"matchLabels": {DEPLOYMENT_LABEL: resource.owner.key.name, NAME_LABEL: SERVER_NAME}}
    beside = {"labelSelector": ours, "topologyKey": "kubernetes.io/hostname"}
    if spec.accelerator == "gpu":
        has_gpu = {"key": f"{spec.gpu.resource_name}.present", "operator": "Exists"}
        wish = {"weight": 50, "preference": {"matchExpressions": [has_gpu]}}
        preferred = "preferredDuringSchedulingIgnoredDuringExecution"
        nodes[preferred] = [*(nodes.get(preferred) or ()), wish]
    near = {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": beside}]}
    }
    return {**({"nodeAffinity": nodes} if nodes else {}), **near}


def _tolerations(spec: LLMDeploymentSpec) -> list[Mapping[str, Any]]:
    asked: list[Mapping[str, Any]] = list(spec.pod.tolerations)
    if spec.accelerator == "gpu":  # as clusters give it to whoever asks for the resource
        asked.append({"key": spec.gpu.resource_name, "operator": "Exists"})
    return asked
