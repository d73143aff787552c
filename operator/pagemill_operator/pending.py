"""`status.rollout`: which fields of the spec some replica does not have yet, and what it takes to bring them there.

Pure. Restart fields are told by the pods themselves, which carry a hash of each field that they were made from; hot ones by what
the replicas answer on /config. Called by `status`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.fleet import Fleet
from pagemill_operator.hot import pending_fields
from pagemill_operator.labels import TEMPLATE_FIELDS_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.status_fields import RolloutStatus
from pagemill_operator.template_hash import template_fields


def pending(spec: LLMDeploymentSpec, fleet: Fleet, world: World) -> RolloutStatus | None:
    """None when every replica is as wanted. The class is that of the heaviest field: restart, operator, hot."""
    by_class = {
        "restart": _restart_fields(spec, fleet, world),
        "operator": _operator_fields(spec, fleet),
        "hot": pending_fields(spec, world),
    }
    fields = sorted(set().union(*by_class.values()))
    if not fields:
        return None
    heaviest = next(name for name, found in by_class.items() if found)
    return RolloutStatus.model_validate({"pendingFields": tuple(fields), "class": heaviest})


def _restart_fields(spec: LLMDeploymentSpec, fleet: Fleet, world: World) -> set[str]:
    wanted, older = template_fields(spec), {pod.name for pod in fleet.older}
    fields: set[str] = set()
    for pod in world.pods:
        if pod["metadata"]["name"] in older and (found := _carried(pod)) is not None:
            fields |= {path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path)}
    return fields


def _operator_fields(spec: LLMDeploymentSpec, fleet: Fleet) -> set[str]:
    """Replicas that are still to come or to go. A rollout has its own count of them."""
    present = sum(not pod.ended for pod in fleet.newest)
    if fleet.older or present == fleet.wanted.replicas:
        return set()
    return {"suspend" if spec.suspend else "replicas"}


def _carried(pod: Manifest) -> dict[str, str] | None:
    """The fields that a pod was made from; None for one that does not say."""
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    try:
        found = json.loads(annotations.get(TEMPLATE_FIELDS_ANNOTATION, ""))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
