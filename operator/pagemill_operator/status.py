"""What the operator says of an LLMDeployment: from its pods, never from the Deployment's word alone.

Pure: (owner, fleet, world, refusal, previous status, now) → the whole status. The same world gives the same status, so that it is
written only when something changed. Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pagemill import model_ref
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.conditions import findings, stamp, stamped
from pagemill_operator.fleet import Fleet
from pagemill_operator.observe import World
from pagemill_operator.pod_state import capacity_of
from pagemill_operator.render import selector
from pagemill_operator.render_pod import CONTAINER
from pagemill_operator.resource import Owner
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.status_fields import Capacity, Loading, Status
from pagemill_operator.waiting import Trouble

_LOADING_STEP = 10  # percent
_LOADING_EVERY = timedelta(seconds=30)  # progress inside a phase is no more news than that


def status(
    owner: Owner,
    spec: LLMDeploymentSpec | None,
    fleet: Fleet,
    world: World,
    refusal: Trouble | None,
    previous: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    """`spec` is None where it can't be read; `refusal` says why a spec or a write was not accepted."""
    capacity = _capacity(fleet, previous)
    utilization = spec.gpu_memory_utilization if spec is not None and spec.accelerator == "gpu" else None
    said = findings(fleet, refusal, utilization, capacity)
    service = world.child("Service")
    body = Status(
        observed_generation=owner.generation,
        replicas=sum(not pod.ended for pod in (*fleet.newest, *fleet.older)),
        ready_replicas=fleet.ready,
        ready=f"{fleet.ready}/{fleet.wanted.replicas}",
        selector=",".join(f"{name}={value}" for name, value in sorted(selector(owner.key.name).items())),
        url=None if service is None else _url(service),
        image=_image(world.child("Deployment")),
        model_revision=None if spec is None else model_ref.parse(spec.model).revision,
        capacity=capacity,
        loading=_loading(fleet, previous, now),
        conditions=stamped(said, previous.get("conditions") or (), owner.generation, now),
    )
    return body.model_dump(mode="json", by_alias=True, exclude_none=True)


def changes(new: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any]:
    """What to write: the whole new status and a null for each field that goes; empty when both are the same."""
    gone = {name: None for name, value in previous.items() if name not in new and value is not None}
    same = not gone and all(previous.get(name) == value for name, value in new.items())
    return {} if same else {**new, **gone}


def look_again(fleet: Fleet, capacity: object, refused: bool, settings: Settings) -> float | None:
    """Seconds until another look is worth it: no event that is watched tells of loading, of capacity or of a volume that fails.

    `refused`: the cluster refused a write. What it was refused for (a quota, a webhook, another's object) is watched by nobody.
    """
    if any(pod.answered or pod.phase for pod in fleet.starting):
        return settings.look_again_seconds
    if fleet.crowded or (fleet.ready and capacity is None) or any(pod.trouble is None for pod in fleet.starting):
        return settings.settle_seconds
    return settings.refused_seconds if refused else None


def _capacity(fleet: Fleet, previous: Mapping[str, Any]) -> Capacity | None:
    """The smallest replica's. One that serves but is too busy to say it again keeps what was known."""
    said = [pod.capacity for pod in fleet.newest if pod.capacity is not None]
    if said:
        return Capacity.model_validate(min(said, key=lambda one: one["kvBlocks"]))
    known = capacity_of(previous.get("capacity"))
    return Capacity.model_validate(known) if known is not None and fleet.ready else None


def _loading(fleet: Fleet, previous: Mapping[str, Any], now: datetime) -> Loading | None:
    """The slowest replica that is on its way; what was said last stands for a while, so that a load is a few writes."""
    pods = [pod for pod in fleet.starting if pod.phase is not None and pod.phase != "Draining"]
    if not pods:
        return None
    slowest = min(pods, key=lambda pod: (pod.percent, pod.name))
    percent = slowest.percent // _LOADING_STEP * _LOADING_STEP
    said = previous.get("loading") or {}
    if said.get("phase") == slowest.phase and "time" in said:
        recent = now - datetime.fromisoformat(said["time"]) < _LOADING_EVERY
        if said.get("percent") == percent or recent:
            return Loading.model_validate(said)
    return Loading(phase=str(slowest.phase), percent=percent, time=stamp(now))


def _url(service: Manifest) -> str:
    """From outside where a load balancer gave an address, else the Service's name inside the cluster."""
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    host = f"{metadata['name']}.{metadata['namespace']}.svc"
    for entry in ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
        host = entry.get("hostname") or entry.get("ip") or host
        host = f"[{host}]" if ":" in host else host
        port = (entry.get("ports") or [{"port": port}])[0]["port"]
        break
    return f"http://{host}:{port}/v1"


def _image(deployment: Manifest | None) -> str | None:
    if deployment is None:
        return None
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return next((str(container["image"]) for container in containers if container["name"] == CONTAINER), None)
