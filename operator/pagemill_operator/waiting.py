"""Why a pod has no running container, from Kubernetes' own words to ours: what is missing and who can give it. Pure.

Called by `pod_state`; `refused_pods` and `ending` tell of pods that were never made and of containers that ran.
"""

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
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found', re.IGNORECASE)
# A back-off quotes the attempt before it; without these words both read the same, and the status is not written at each.
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(: (ErrImagePull: )?)?')
_ABSENT = re.compile(r'(secret|configmap) "[^"]+" not found|references non-existent (secret|config) key')
_UNSPECIFIC = "Unable to attach or mount volumes"  # the kubelet's summary, beside which another event says for what
# The scheduler's words, lower case, and what to do.
_ADVICE = (
    ("untolerated taint", "tolerate the nodes' taint in pod.tolerations"),
    ("node affinity/selector", "no node is what pod.nodeSelector and pod.affinity ask for"),
    (
        "volume node affinity",
        "the claim's volume lies in another zone, or on another node, than the nodes that have room",
    ),
    ("persistentvolume's node affinity", "the claim's volume lies in another zone, or on another node"),
    ("topology spread", "pod.topologySpreadConstraints leave no node"),
    ("anti-affinity", "pod.affinity keeps it away from the pods that are there"),
    ("were unschedulable", "nodes are cordoned: uncordon one"),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a replica does not serve: a condition's reason and message."""

    reason: str
    message: str
    passing: bool = False  # Kubernetes tries again by itself, and that may well be all: it ended once, another is made


def scheduling_trouble(message: str, claims: Iterable[Manifest], asks: Mapping[str, str] | None = None) -> Trouble:
    """No node took the pod. `message` is the scheduler's; `asks`: what the pod requests, by resource."""
    lower, quoted = message.lower(), f"The scheduler says: {message}"
    if missing := _NO_CLAIM.search(message):
        return Trouble("ClaimPending", f"claim {missing[1]} does not exist: make it, or name another. {quoted}")
    if any(words in lower for words in ("persistentvolumeclaim", "persistent volume", "binding volumes")):
        pending = [_claim(claim) for claim in claims if (claim.get("status") or {}).get("phase") != "Bound"]
        which = f"claim {', '.join(pending)} is pending" if pending else "a claim of the pod is not bound"
        return Trouble("ClaimPending", f"{which}: check its storage class and size. {quoted}")
    advice = [advice for words, advice in _ADVICE if words in lower]
    short = sorted({name.rstrip(".,") for name in _INSUFFICIENT.findall(message)})
    if short:
        what = " and ".join(_amount(name, asks or {}) for name in short)
        advice.insert(0, f"no node has enough {what}: add one, free some, or ask for less")
        return Trouble("Unschedulable", f"{'; '.join(advice)}. {quoted}")
    if advice:
        return Trouble("Unschedulable", f"no node takes the pod: {'; '.join(advice)}. {quoted}")
    return Trouble("Unschedulable", f"no node takes the pod: {message}" if message else "no node takes the pod")


def gated_trouble(gates: Iterable[Mapping[str, Any]]) -> Trouble:
    """A queue (Kueue, or the like) holds the pod back from the scheduler."""
    names = ", ".join(str(gate.get("name")) for gate in gates)
    return Trouble("SchedulingGated", f"the pod waits for whoever set its scheduling gate ({names}) to let it go")


def wants_room(trouble: Trouble) -> bool:
    """Whether a node would take the pod if others left it; a taint or a selector stays."""
    return trouble.reason == "Unschedulable" and _INSUFFICIENT.search(trouble.message) is not None


def waiting_trouble(waiting: Mapping[str, Any]) -> Trouble | None:
    """The kubelet can't make the container. A crash loop is told by how the container ended, not here."""
    reason, message = waiting.get("reason", ""), _one_line(waiting.get("message", ""))
    if reason in _PULL:
        said = _BACK_OFF.sub("", message) or message
        return Trouble(
            "ImagePullFailure", f"the image can't be pulled: check image and imagePullSecrets. {said}".rstrip()
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
    if mounts:
        said = _one_line(min(mounts, key=_is_unspecific).get("message", ""))
        reason = "ContainerConfigError" if _ABSENT.search(said) else "VolumeFailure"
        return Trouble(reason, f"the pod can't start: {said}")
    for event in warnings:
        if event.get("reason", "") in _STOPS:
            return Trouble("PodNotStarted", f"the pod can't start: {_one_line(event.get('message', ''))}")
    return None


def _is_unspecific(event: Manifest) -> bool:
    return str(event.get("message", "")).startswith(_UNSPECIFIC)


def _amount(name: str, asks: Mapping[str, str]) -> str:
    return f"{name} (the pod asks for {asks[name]})" if name in asks else name


def _claim(claim: Manifest) -> str:
    return str(claim["metadata"]["name"])


def _one_line(text: str) -> str:
    return " ".join(text.split())
