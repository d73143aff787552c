"""What the operator says of an LLMDeployment: from its pods, never from the Deployment's word alone.

Pure: (owner, fleet, world, what was refused, previous status, now) → the whole status. The same world gives the same status, so
that it is written only when something changed. Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pagemill import model_ref
from pagemill_operator.apply import SCALERS, SETTINGS, Refusal
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.conditions import findings, stamp, stamped
from pagemill_operator.fleet import Fleet
from pagemill_operator.look import Look
from pagemill_operator.observe import World
from pagemill_operator.pod_state import capacity_of
from pagemill_operator.preflight import PASSED, Preflight
from pagemill_operator.render import selector
from pagemill_operator.render_pod import CONTAINER
from pagemill_operator.resource import Owner
from pagemill_operator.scaling import UNSCALED, Scaled
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.status_fields import Capacity, Loading, RolloutStatus, Status
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
    *,
    before: Preflight = PASSED,
    beside: Sequence[Trouble] = (),
    missing: RolloutStatus | None = None,
    scaled: Scaled = UNSCALED,
) -> dict[str, Any]:
    """`spec` is None where it can't be read; `refusal` says why it, or a write without which nothing serves, was not accepted;
    `beside`: what is wrong while the replicas serve all the same; `missing`: what of the spec they don't have yet; `scaled`: who
    decides how many."""
    capacity = _capacity(fleet, previous, owner.generation)
    look = Look(
        fleet=fleet,
        refusal=refusal,
        beside=tuple(beside),
        before=before,
        utilization=spec.gpu_memory_utilization if spec is not None and spec.accelerator == "gpu" else None,
        capacity=capacity,
        said={one["type"]: one for one in previous.get("conditions") or ()},
        former_replicas=_former_replicas(previous),
        former_ready=int(previous.get("readyReplicas") or 0),
        max_failures=(spec.rollout.max_failures if spec is not None else None) or 1,
        asleep=scaled.asleep,
    )
    found = (*findings(look), *((scaled.active,) if scaled.active is not None else ()))
    service = world.service(owner.key.name)
    body = Status(
        observed_generation=owner.generation,
        replicas=sum(not pod.ended for pod in (*fleet.newest, *fleet.older)),
        ready_replicas=fleet.ready,
        ready=f"{fleet.ready}/{fleet.wanted.replicas}",
        selector=",".join(f"{name}={value}" for name, value in sorted(selector(owner.key.name).items())),
        url=None if service is None else _url(service),
        image=_image(world.child("Deployment")),
        model_revision=before.revision or (None if spec is None else model_ref.parse(spec.model).revision),
        capacity=capacity,
        loading=_loading(look, previous, now),
        autoscaling=scaled.status,
        rollout=missing,
        conditions=stamped(found, previous.get("conditions") or (), owner.generation, now),
    )
    return body.model_dump(mode="json", by_alias=True, exclude_none=True)


def refused(
    refusals: Sequence[Refusal], gateway: Trouble | None = None, replicas: int = 1
) -> tuple[Trouble | None, tuple[Trouble, ...]]:
    """What the cluster refused: what keeps pods from serving, and what is only missing beside them.

    `gateway`: what is wrong with the namespace's, without which replicas are reached all the same, but nobody wakes a sleeping one.
    """
    needed = [one.message for one in refusals if not _is_beside(one)]
    serious = Trouble("ApplyRefused", f"the cluster refuses {'; '.join(needed)}") if needed else None
    lacking = tuple(_lacking(one) for one in refusals if _is_beside(one))
    if gateway is None:
        return serious, lacking
    return (serious, (*lacking, gateway)) if replicas or serious is not None else (gateway, lacking)


def _is_beside(one: Refusal) -> bool:
    return one.beside or one.kind == "Pod"  # a note on a pod


def _lacking(one: Refusal) -> Trouble:
    if one.kind == SETTINGS:
        return Trouble("SettingsRefused", f"the replicas serve with their former settings: {one.message}")
    if one.kind == "PodMonitor":
        return Trouble("MonitoringUnavailable", f"Prometheus is not told of the replicas: {one.message}")
    if one.no_such_kind and one.kind in ("HTTPRoute", "InferencePool"):
        return Trouble("GatewayUnavailable", f"no gateway leads to the replicas: {one.message}")
    if one.kind in SCALERS:
        return Trouble("KedaUnavailable", f"the number of replicas stays as it is: {one.message}")
    return Trouble("ApplyRefused", f"beside the replicas, the cluster refuses {one.message}")


def _former_replicas(previous: Mapping[str, Any]) -> int:
    """How many were wanted at the last look: "1/2" says two."""
    wanted = str(previous.get("ready") or "").rpartition("/")[2]
    return int(wanted) if wanted.isdigit() else 0


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
    if (
        fleet.crowded
        or (fleet.leaving and not fleet.overdue)
        or (fleet.ready and capacity is None)
        or any(pod.trouble is None for pod in fleet.starting)
    ):
        return settings.settle_seconds
    return settings.refused_seconds if refused else None


def _capacity(fleet: Fleet, previous: Mapping[str, Any], generation: int) -> Capacity | None:
    """The smallest replica's. While one of them is only too busy to say it again what was known stays."""
    said = [pod.capacity for pod in fleet.newest if pod.capacity is not None]
    if said:
        return Capacity.model_validate(min(said, key=lambda one: one["kvBlocks"]))
    known = capacity_of(previous.get("capacity"))
    silent = previous.get("observedGeneration") == generation and any(pod.started for pod in fleet.newest)
    return Capacity.model_validate(known) if known is not None and (fleet.ready or silent) else None


def _loading(look: Look, previous: Mapping[str, Any], now: datetime) -> Loading | None:
    """The slowest replica that is on its way; what was said last stands for a while, so that a load is a few writes."""
    pods = [pod for pod in look.fleet.starting if pod.phase is not None and pod.phase != "Draining"]
    if not pods:
        known = previous.get("loading") if look.silent and look.trouble is None else None
        return Loading.model_validate(known) if known else None
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
