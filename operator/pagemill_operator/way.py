"""Who needs the namespace's gateway, and the way that requests go just now: `lead` finds it, `render` makes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_operator.gateway.route import Route
from pagemill_operator.labels import DEPLOYMENT_LABEL, GATEWAY_LABEL_VALUE, GATEWAY_NAME, NAME_LABEL
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.waiting import Trouble

# The labels that make a pod one of the namespace's gateway.
GATEWAY_SELECTOR = {DEPLOYMENT_LABEL: GATEWAY_LABEL_VALUE, NAME_LABEL: GATEWAY_NAME}


def wake_timeout(spec: LLMDeploymentSpec) -> int | None:
    """Seconds that a request waits for one that sleeps; None: it never does."""
    scaling = spec.autoscaling
    return scaling.wake_timeout_seconds if scaling is not None and scaling.min_replicas == 0 else None


def needs_gateway(spec: LLMDeploymentSpec) -> bool:
    """Whether somebody has to choose a replica for each request, or to hold requests while there is none."""
    return (wake_timeout(spec) is not None or spec.routing != "service") and not spec.suspend


@dataclass(frozen=True, slots=True)
class Way:
    """Filled by `lead`."""

    route: Route | None = None  # what the Service `<name>-replicas` tells the gateway; None: there is no such Service
    ends: str | None = None  # when that Service goes, where it is on its way out
    target: int | None = None  # the gateway's port that the deployment's Service leads to; None: to the replicas
    trouble: Trouble | None = None  # of a gateway that is needed and takes no requests
    again: float | None = None  # seconds until another look is worth it


DIRECT = Way()
