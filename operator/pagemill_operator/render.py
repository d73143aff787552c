"""What an LLMDeployment becomes: Deployment, Service, ServiceAccount and, with modelCache.size, a claim.

Pure: (resource, settings, the live Deployment) → manifests in the order in which they are applied. The live Deployment is looked at
for one thing: the image that it was given (an annotation says which: a hand may have changed the template) stays while nothing that
restarts has changed, so that an upgrade of the operator restarts no model.
Called by `reconcile` and by `pagemill render`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import (
    API_VERSION,
    DEPLOYMENT_LABEL,
    FIELD_MANAGER,
    IMAGE_ANNOTATION,
    KIND,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    PULL_POLICY_ANNOTATION,
    SERVER_NAME,
    TEMPLATE_HASH_ANNOTATION,
)
from pagemill_operator.render_pod import PORT_NAME, Image, claim_name, pod_spec
from pagemill_operator.resource import Resource
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.template_hash import template_hash

_HISTORY = 2  # old ReplicaSets that are kept


def render(resource: Resource, settings: Settings, live: Manifest | None = None) -> tuple[Manifest, ...]:
    """The children that should exist, complete: what is not said here, the operator does not own."""
    spec, children = resource.spec, []
    if spec.pod.service_account_name is None:
        children.append(_child(resource, "v1", "ServiceAccount", automountServiceAccountToken=False))
    if spec.model_cache is not None and spec.model_cache.size is not None:
        children.append(_claim(resource))
    children.append(_child(resource, "v1", "Service", spec=_service_spec(resource)))
    children.append(_deployment(resource, settings, live))
    return tuple(children)


def replicas(spec: LLMDeploymentSpec) -> int:
    """How many pods should serve."""
    if spec.suspend:
        return 0
    return 1 if spec.replicas is None else spec.replicas


def selector(name: str) -> dict[str, str]:
    """The labels that make a pod a replica of the deployment `name`."""
    return {DEPLOYMENT_LABEL: name, NAME_LABEL: SERVER_NAME}


def _child(resource: Resource, api_version: str, kind: str, **body: Any) -> dict[str, Any]:
    owner = resource.owner
    metadata: dict[str, Any] = {
        "name": owner.key.name,
        "labels": {**owner.labels, **selector(owner.key.name), MANAGED_BY_LABEL: FIELD_MANAGER},
    }
    if owner.key.namespace:
        metadata["namespace"] = owner.key.namespace
    if owner.uid:  # a manifest from a file has none yet
        reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.key.name, "uid": owner.uid}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def _service_spec(resource: Resource) -> dict[str, Any]:
    service = resource.spec.service
    port = {"name": PORT_NAME, "port": service.port, "targetPort": PORT_NAME, "protocol": "TCP", "appProtocol": "http"}
    return {"type": service.type, "selector": selector(resource.owner.key.name), "ports": [port]}


def _claim(resource: Resource) -> dict[str, Any]:
    cache = resource.spec.model_cache
    assert cache is not None
    spec: dict[str, Any] = {
        "accessModes": [cache.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    claim = _child(resource, "v1", "PersistentVolumeClaim", spec=spec)
    claim["metadata"]["name"] = claim_name(resource)
    if cache.retain:  # without an owner it outlives the LLMDeployment
        claim["metadata"].pop("ownerReferences", None)
    return claim


def _deployment(resource: Resource, settings: Settings, live: Manifest | None) -> dict[str, Any]:
    hashed = template_hash(resource.spec)
    image = _image(resource.spec, settings, live, hashed)
    deployment = _child(resource, "apps/v1", "Deployment", spec=_deployment_spec(resource, image, hashed))
    given = {IMAGE_ANNOTATION: image.name, PULL_POLICY_ANNOTATION: image.pull_policy}
    deployment["metadata"]["annotations"] = {name: value for name, value in given.items() if value is not None}
    return deployment


def _deployment_spec(resource: Resource, image: Image, hashed: str) -> dict[str, Any]:
    spec, name = resource.spec, resource.owner.key.name
    surge = spec.rollout.strategy == "Surge"
    labels = {**spec.pod.labels, **selector(name), MANAGED_BY_LABEL: FIELD_MANAGER}
    annotations = {**spec.pod.annotations, TEMPLATE_HASH_ANNOTATION: hashed}
    return {
        "replicas": replicas(spec),
        "paused": False,  # said, so that it is ours: a hand's pause would hold up every later rollout in silence
        "revisionHistoryLimit": _HISTORY,
        # Kubernetes' deadline must not be shorter than a load that moves; the server itself says when one stalls.
        "progressDeadlineSeconds": spec.startup.timeout_seconds + 600,
        "selector": {"matchLabels": selector(name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1 if surge else 0, "maxUnavailable": 0 if surge else 1},
        },
        "template": {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": pod_spec(resource, image),
        },
    }


def _image(spec: LLMDeploymentSpec, settings: Settings, live: Manifest | None, hashed: str) -> Image:
    default = Image(settings.image(spec.accelerator), settings.image_pull_policy)
    if live is not None and template_annotation(live) == hashed:
        given: Mapping[str, str] = live["metadata"].get("annotations") or {}
        if IMAGE_ANNOTATION in given:
            default = Image(given[IMAGE_ANNOTATION], given.get(PULL_POLICY_ANNOTATION))
    return Image(spec.image or default.name, spec.image_pull_policy or default.pull_policy)


def template_annotation(manifest: Manifest) -> str | None:
    """The template hash that a Deployment carries on its template."""
    annotations: Mapping[str, str] = manifest["spec"]["template"]["metadata"].get("annotations") or {}
    return annotations.get(TEMPLATE_HASH_ANNOTATION)
