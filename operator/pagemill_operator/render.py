"""What an LLMDeployment becomes: Deployment, Services, ServiceAccount and, with modelCache.size, a claim.

Pure: (resource, settings, the live Deployment) → manifests in the order in which they are applied. The live Deployment is looked at
for one thing: the pod template that it was given, image and all, stays while nothing that restarts has changed, so that an
upgrade of the operator restarts no model (`render_kept`). Called by `reconcile` and by `pagemill render`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pagemill.endpoints import SERVING_PORT
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.gateway.route import REPLICAS_SUFFIX, ROUTE_ANNOTATION, Route
from pagemill_operator.hot_settings import config_map_data, config_map_name
from pagemill_operator.labels import (
    API_VERSION,
    DEPLOYMENT_LABEL,
    FIELD_MANAGER,
    KIND,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    PREFLIGHT_ANNOTATION,
    ROUTE_ENDS_ANNOTATION,
    SECRET_ANNOTATION,
    SERVER_NAME,
    TEMPLATE_ANNOTATION,
    TEMPLATE_FIELDS_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
)
from pagemill_operator.management_token import SECRET_KEY, management_token, secret_name
from pagemill_operator.preflight import PASSED, Preflight
from pagemill_operator.render_beside import beside
from pagemill_operator.render_kept import as_annotation, kept_template
from pagemill_operator.render_pod import PORT_NAME, Image, claim_name, pod_spec
from pagemill_operator.render_scaled_object import KEDA_API, ScalerChild, scaler
from pagemill_operator.render_standing import rescaled
from pagemill_operator.resource import Resource
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.template_hash import template_fields, template_hash
from pagemill_operator.way import DIRECT, GATEWAY_SELECTOR, Way

_HISTORY = 2  # old ReplicaSets that are kept


def render(
    resource: Resource,
    settings: Settings,
    live: Manifest | None = None,
    before: Preflight = PASSED,
    count: int | None = None,
    allowance: int = 1,
    way: Way = DIRECT,
) -> tuple[Manifest, ...]:
    """The children that should exist, complete: what is not said here, the operator does not own.

    `before`: what the look at the model found; while it has not passed, a Deployment that is there is scaled and no more.
    `count`: replicas for now, where that differs from what the spec says; `allowance`: how many a rollout may have under way.
    `way`: where requests go, by themselves to the replicas.
    """
    spec, children = resource.spec, []
    if spec.pod.service_account_name is None:
        children.append(_child(resource, "v1", "ServiceAccount", automountServiceAccountToken=False))
    if spec.model_cache is not None and spec.model_cache.size is not None:
        children.append(_claim(resource))
    children.append(_child(resource, "v1", "Service", spec=_service_spec(resource, way.target)))
    if way.route is not None:
        children.append(_replicas_service(resource, way.route, way.ends))
    name = resource.owner.key.name
    for api_version, kind, body in beside(name, spec, settings, selector(name), replicas(spec)):
        children.append(_child(resource, api_version, kind, spec=body))
    children += [_scaler(resource, one) for one in scaler(resource.owner.key, spec)]
    children.append(_settings(resource))
    if before.job is not None:
        children.append(dict(before.job))
    if before.passed and settings.management_key:
        children.append(_management_secret(resource, settings.management_key))
    now = replicas(spec) if count is None else count
    if before.passed:
        children.append(_deployment(resource, settings, live, before, now, allowance))
    elif live is not None and (standing := rescaled(live, now)) is not None:
        children.append(standing)
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
        metadata["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def _scaler(resource: Resource, one: ScalerChild) -> dict[str, Any]:
    made = _child(resource, KEDA_API, one.kind, spec=one.spec)
    made["metadata"]["annotations"] = dict(one.annotations)
    return made


def _service_spec(resource: Resource, gateway_port: int | None) -> dict[str, Any]:
    """By its selector it leads to the replicas or to the gateway: one write turns it (docs/decisions/012)."""
    service = resource.spec.service
    where = (selector(resource.owner.key.name), PORT_NAME) if gateway_port is None else (GATEWAY_SELECTOR, gateway_port)
    port = {"name": PORT_NAME, "port": service.port, "targetPort": where[1], "protocol": "TCP", "appProtocol": "http"}
    return {"type": service.type, "selector": where[0], "ports": [port]}


def _replicas_service(resource: Resource, route: Route, ends: str | None) -> dict[str, Any]:
    """By which the gateway learns what to do for the deployment and who of the replicas is ready."""
    name = resource.owner.key.name
    port = {"name": PORT_NAME, "port": SERVING_PORT, "targetPort": PORT_NAME, "protocol": "TCP", "appProtocol": "http"}
    spec = {"clusterIP": "None", "selector": selector(name), "ports": [port], "publishNotReadyAddresses": False}
    service = _child(resource, "v1", "Service", spec=spec)
    service["metadata"]["name"] = name + REPLICAS_SUFFIX
    leaving = {} if ends is None else {ROUTE_ENDS_ANNOTATION: ends}
    service["metadata"]["annotations"] = {ROUTE_ANNOTATION: route.to_json(), **leaving}
    return service


def _management_secret(resource: Resource, operator_key: bytes) -> dict[str, Any]:
    token = management_token(operator_key, resource.owner.key)
    secret = _child(resource, "v1", "Secret", stringData={SECRET_KEY: token})
    secret["metadata"]["name"] = secret_name(resource.owner.key.name)
    return secret


def stamp(manifest: Manifest) -> str:
    """16 hexadecimal digits of all that a manifest says."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _settings(resource: Resource) -> dict[str, Any]:
    config_map = _child(resource, "v1", "ConfigMap", data=config_map_data(resource.spec))
    config_map["metadata"]["name"] = config_map_name(resource.owner.key.name)
    return config_map


def _deployment(
    resource: Resource, settings: Settings, live: Manifest | None, before: Preflight, count: int, allowance: int
) -> dict[str, Any]:
    managed = bool(settings.management_key)
    template = kept_template(resource.spec, live) or _template(resource, settings, managed, before.model)
    deployment = _child(resource, "apps/v1", "Deployment", spec=_deployment_spec(resource, template, count))
    deployment["spec"]["strategy"] = _strategy(resource.spec, allowance)
    given = {
        PREFLIGHT_ANNOTATION: before.record,
        SECRET_ANNOTATION: stamp(_management_secret(resource, settings.management_key)) if managed else None,
        # What `pagemill render` prints of a file is for a person to read, and nobody will ask it for a former template.
        TEMPLATE_ANNOTATION: as_annotation(template) if resource.owner.uid else None,
    }
    deployment["metadata"]["annotations"] = {name: value for name, value in given.items() if value is not None}
    return deployment


def _deployment_spec(resource: Resource, template: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {
        "replicas": count,
        "paused": False,  # said, so that it is ours: a hand's pause would hold up every later rollout in silence
        "revisionHistoryLimit": _HISTORY,
        # Kubernetes' deadline must not be shorter than a load that moves; the server itself says when one stalls.
        "progressDeadlineSeconds": resource.spec.startup.timeout_seconds + 600,
        "selector": {"matchLabels": selector(resource.owner.key.name)},
        "template": template,
    }


def _template(resource: Resource, settings: Settings, managed: bool, pinned: str | None) -> dict[str, Any]:
    spec = resource.spec
    labels = {**spec.pod.labels, **selector(resource.owner.key.name), MANAGED_BY_LABEL: FIELD_MANAGER}
    annotations = {
        **spec.pod.annotations,
        TEMPLATE_HASH_ANNOTATION: template_hash(spec),
        TEMPLATE_FIELDS_ANNOTATION: json.dumps(template_fields(spec), separators=(",", ":")),
    }
    image = Image(spec.image or settings.image(spec.accelerator), spec.image_pull_policy or settings.image_pull_policy)
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": pod_spec(resource, image, managed, pinned),
    }


def _strategy(spec: LLMDeploymentSpec, allowance: int) -> dict[str, Any]:
    surge = spec.rollout.strategy == "Surge"
    bounds = {"maxSurge": allowance if surge else 0, "maxUnavailable": 0 if surge else allowance}
    return {"type": "RollingUpdate", "rollingUpdate": bounds}
