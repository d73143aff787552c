"""Why a pod has no running container, from Kubernetes' own words to ours: what is missing and who can give it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagemill_operator.cluster.interface import Manifest

_PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
_CREATE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
# Warnings that stop a pod. Others only remark on something (MissingClusterDNS, FailedToRetrieveImagePullSecret) and pass.
_STOPS = ("FailedCreatePodSandBox", "FailedCreatePodContainer", "FailedSync", "NetworkNotReady", "FailedKillPod")
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./_-]+)")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a replica does not serve: a condition's reason and message."""

    reason: str
    message: str


def scheduling_trouble(message: str, claims: Iterable[Manifest]) -> Trouble:
    """No node took the pod. `message` is the scheduler's."""
    lower = message.lower()
    if "persistentvolumeclaim" in lower or "persistent volume" in lower:
        pending = [_claim(claim) for claim in claims if (claim.get("status") or {}).get("phase") != "Bound"]
        which = f"claim {', '.join(pending)} is pending" if pending else "a claim of the pod is not bound"
        return Trouble("ClaimPending", f"{which}: check its storage class and size. The scheduler says: {message}")
    missing = sorted({name.rstrip(".,") for name in _INSUFFICIENT.findall(message)})
    if missing:
        what = " and ".join(missing)
        return Trouble(
            "Unschedulable",
            f"no node has enough {what}: add one, free some, or ask for less. The scheduler says: {message}",
        )
    return Trouble("Unschedulable", f"no node takes the pod: {message}" if message else "no node takes the pod")


def wants_room(trouble: Trouble) -> bool:
    """Whether a node would take the pod if others left it; a taint or a selector stays."""
    return trouble.reason == "Unschedulable" and _INSUFFICIENT.search(trouble.message) is not None


def waiting_trouble(waiting: Mapping[str, Any]) -> Trouble | None:
    """The kubelet can't make the container. A crash loop is told by how the container ended, not here."""
    reason, message = waiting.get("reason", ""), _one_line(waiting.get("message", ""))
    if reason in _PULL:
        return Trouble(
            "ImagePullFailure", f"the image can't be pulled: check image and imagePullSecrets. {message}".rstrip()
        )
    if reason in _CREATE:
        return Trouble("ContainerConfigError", f"the container can't be made: {message or reason}")
    return None


def creating_trouble(waiting: Mapping[str, Any], events: Iterable[Manifest]) -> Trouble | None:
    """A container that stays in creation: only events say for what (a volume, a Secret)."""
    if waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
        return None
    warnings = [event for event in events if event.get("type", "Warning") == "Warning"]
    mounts = [event for event in warnings if "Mount" in event.get("reason", "") or "Volume" in event.get("reason", "")]
    stops = [event for event in warnings if event.get("reason", "") in _STOPS]
    for event, reason in [
        *((found, "VolumeFailure") for found in mounts),
        *((found, "PodNotStarted") for found in stops),
    ]:
        return Trouble(reason, f"the pod can't start: {_one_line(event.get('message', ''))}")
    return None


def _claim(claim: Manifest) -> str:
    return str(claim["metadata"]["name"])


def _one_line(text: str) -> str:
    return " ".join(text.split())
