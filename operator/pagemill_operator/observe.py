"""Reads what there is of one LLMDeployment into a frozen world, so that everything after it is a pure function.

The only stage that waits for others: the cluster's cache, and each replica's own word on `/ready`, asked of all at once.
Called by `reconcile`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from pagemill.endpoints import READY_PATH
from pagemill_operator.cluster.interface import Cluster, Key, Manifest, Probe
from pagemill_operator.labels import FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL, SERVER_NAME
from pagemill_operator.pod_state import has_ended

# What `render` may make, in no order; `plan` deletes those that it no longer makes.
CHILD_KINDS = ("Deployment", "Service", "ServiceAccount", "PersistentVolumeClaim")


@dataclass(frozen=True, slots=True)
class World:
    """Manifests as the cluster's cache holds them; pods and events in the order of their names."""

    children: tuple[Manifest, ...] = ()  # of CHILD_KINDS, made by this operator
    pods: tuple[Manifest, ...] = ()  # that serve, or are about to
    events: tuple[Manifest, ...] = ()  # warnings about pods that have no container yet
    probes: Mapping[str, Probe] = field(default_factory=dict)  # by pod name: what /ready answered

    def child(self, kind: str) -> Manifest | None:
        """The child of a kind of which there is at most one."""
        return next((child for child in self.children if child["kind"] == kind), None)


async def observe(cluster: Cluster, key: Key) -> World:
    """One look. What the cache misses now is mended by the event that brings it up to date."""
    found = await asyncio.gather(*(cluster.children(key, kind) for kind in CHILD_KINDS))
    pods = _sorted(pod for pod in await cluster.children(key, "Pod") if _label(pod, NAME_LABEL) == SERVER_NAME)
    asked = [pod for pod in pods if (pod.get("status") or {}).get("podIP") and not has_ended(pod)]
    answers = await asyncio.gather(*(cluster.probe(pod, READY_PATH) for pod in asked))
    return World(
        children=tuple(child for group in found for child in group if _label(child, MANAGED_BY_LABEL) == FIELD_MANAGER),
        pods=pods,
        events=_sorted(await cluster.children(key, "Event")) if pods else (),
        probes={pod["metadata"]["name"]: answer for pod, answer in zip(asked, answers, strict=True)},
    )


def _sorted(manifests: object) -> tuple[Manifest, ...]:
    return tuple(sorted(manifests, key=lambda found: str(found["metadata"]["name"])))  # type: ignore[call-overload]


def _label(manifest: Manifest, name: str) -> str | None:
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return labels.get(name)
