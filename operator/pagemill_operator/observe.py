"""Reads what there is of one LLMDeployment into a frozen world, so that everything after it is a pure function.

The only stage that waits for others: the cluster's cache, and each replica's own word on `/ready`, asked of all at once.
Called by `reconcile`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagemill.endpoints import CONFIG_PATH, DRAIN_PATH, READY_PATH
from pagemill_operator.cluster.interface import Cluster, Key, Manifest, Probe
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT
from pagemill_operator.gateway_key import gateway_key
from pagemill_operator.labels import FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL, PREFLIGHT_NAME, SERVER_NAME
from pagemill_operator.pod_state import has_ended
from pagemill_operator.samples import Answer
from pagemill_operator.spec_scaling import Prometheus

# What `render` may make, in no order; `plan` deletes those that it no longer makes.
CHILD_KINDS = (
    *("Deployment", "Service", "ServiceAccount", "PersistentVolumeClaim", "ConfigMap", "Job", "PodDisruptionBudget"),
    *("NetworkPolicy", "PodMonitor", "HTTPRoute", "InferencePool", "ScaledObject", "TriggerAuthentication"),
)
# And what a namespace's gateway consists of.
GATEWAY_KINDS = (
    *("Deployment", "ServiceAccount", "Role", "RoleBinding", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"),
)
_GATEWAY_READY_PATH = "/readyz"  # {"ready": bool, "ports": [where it listens]}


@dataclass(frozen=True, slots=True)
class World:
    """Manifests as the cluster's cache holds them; pods and events in the order of their names."""

    children: tuple[Manifest, ...] = ()  # of CHILD_KINDS, made by this operator
    pods: tuple[Manifest, ...] = ()  # that serve, or are about to
    events: tuple[Manifest, ...] = ()  # warnings about pods that have no container yet
    probes: Mapping[str, Probe] = field(default_factory=dict)  # by pod name: what /ready answered
    jobs: tuple[Manifest, ...] = ()  # pods of the preflight Job
    nodes: tuple[Manifest, ...] = ()  # where they can be seen, else empty
    configs: Mapping[str, Probe] = field(default_factory=dict)  # /config of those with other settings than wanted
    drains: Mapping[str, Probe] = field(default_factory=dict)  # /drain of those that could go, while some must
    # What autoscaling is decided on, from where the spec says: pages of those that serve, or Prometheus' answers.
    pages: Mapping[str, str | None] = field(default_factory=dict)  # by pod name: /metrics; None: no answer
    answers: Mapping[str, Answer] = field(default_factory=dict)  # by signal: series, or why there are none
    held: int | None = 0  # requests that wait at the gateway for a replica; None: no gateway could be asked

    gateway: World | None = None  # the namespace's gateway, where the spec needs it

    def service(self, name: str) -> Manifest | None:
        """The child Service of that name."""
        services = (child for child in self.children if child["kind"] == "Service")
        return next((service for service in services if _name(service) == name), None)

    def child(self, kind: str) -> Manifest | None:
        """The child of a kind of which there is at most one."""
        return next((child for child in self.children if child["kind"] == kind), None)


@dataclass(frozen=True, slots=True)
class Signals:
    """Where the load is read: from the replicas themselves, or by `queries` from Prometheus."""

    prometheus: Prometheus | None = None
    queries: Mapping[str, str] = field(default_factory=dict)  # PromQL by signal
    held: bool = False  # a gateway may hold requests


@dataclass(frozen=True, slots=True)
class Questions:
    """What an accepted spec wants, so that replicas are asked only for what a next step hangs on. Made by `steer`."""

    replicas: int  # fewest that there may be: whoever is above may have to go
    settings: str  # digest of the hot settings
    gateway: bool = False  # the way goes through the namespace's gateway
    signals: Signals | None = None  # what autoscaling is to be decided on; None: nothing, or not by us


async def observe(cluster: Cluster, key: Key, questions: Questions | None = None) -> World:
    """One look. What the cache misses now is mended by the event that brings it up to date."""
    found = await asyncio.gather(*(cluster.children(key, kind) for kind in CHILD_KINDS))
    made = await cluster.children(key, "Pod")
    pods = _sorted(pod for pod in made if _label(pod, NAME_LABEL) == SERVER_NAME)
    jobs = _sorted(pod for pod in made if _label(pod, NAME_LABEL) == PREFLIGHT_NAME)
    asked = [pod for pod in (*pods, *jobs) if (pod.get("status") or {}).get("podIP") and not has_ended(pod)]
    answers = await asyncio.gather(*(cluster.probe(pod, READY_PATH) for pod in asked))
    probes = {_name(pod): answer for pod, answer in zip(asked, answers, strict=True)}
    others, leaving = _to_manage(questions, pods, probes) if questions is not None else ((), ())
    signals = questions.signals if questions is not None else None
    pages, series, held = await _load(cluster, key, signals, _able(pods, probes))
    children = tuple(child for group in found for child in group if _label(child, MANAGED_BY_LABEL) == FIELD_MANAGER)
    return World(
        children=children,
        pods=pods,
        events=_sorted(await cluster.children(key, "Event"))
        if pods or any(child["kind"] == "Job" for child in children)
        else (),
        jobs=jobs,
        nodes=await cluster.nodes(),
        probes=probes,
        configs=await _managed(cluster, others, CONFIG_PATH),
        drains=await _managed(cluster, leaving, DRAIN_PATH),
        gateway=await observe_gateway(cluster, key.namespace) if questions is not None and questions.gateway else None,
        pages=pages,
        answers=series,
        held=held,
    )


async def observe_gateway(cluster: Cluster, namespace: str, *, ask: bool = True) -> World:
    """A namespace's gateway; with `ask`, also what holds its pods up and on which ports they listen."""
    key = gateway_key(namespace)
    found = await asyncio.gather(*(cluster.children(key, kind) for kind in GATEWAY_KINDS))
    pods = _sorted(await cluster.children(key, "Pod"))
    children = tuple(child for group in found for child in group if _label(child, MANAGED_BY_LABEL) == FIELD_MANAGER)
    if not ask:
        return World(children=children, pods=pods)
    asked = [pod for pod in pods if (pod.get("status") or {}).get("podIP") and not has_ended(pod)]
    answers = await asyncio.gather(*(cluster.probe(pod, _GATEWAY_READY_PATH, GATEWAY_ADMIN_PORT) for pod in asked))
    return World(
        children=children,
        pods=pods,
        events=_sorted(await cluster.children(key, "Event")) if pods else (),
        nodes=await cluster.nodes(),
        probes={_name(pod): answer for pod, answer in zip(asked, answers, strict=True)},
    )


def serving(world: World) -> tuple[Manifest, ...]:
    """Pods that take requests, and are to go on doing so."""
    return _able(world.pods, world.probes)


def _able(pods: Sequence[Manifest], probes: Mapping[str, Probe]) -> tuple[Manifest, ...]:
    answering = (pod for pod in pods if (probe := probes.get(_name(pod))) is not None and probe.status == 200)
    return tuple(pod for pod in answering if "deletionTimestamp" not in pod["metadata"])


async def _load(
    cluster: Cluster, key: Key, signals: Signals | None, pods: Sequence[Manifest]
) -> tuple[Mapping[str, str | None], Mapping[str, Answer], int | None]:
    """Pages, answers, and how many wait at the gateway."""
    if signals is None:
        return {}, {}, 0
    held = await cluster.held(key) if signals.held else 0
    if signals.prometheus is None:
        pages = await asyncio.gather(*(cluster.metrics(pod) for pod in pods))
        return {_name(pod): page for pod, page in zip(pods, pages, strict=True)}, {}, held
    return {}, await cluster.query(key.namespace, signals.prometheus, signals.queries), held


def _to_manage(
    questions: Questions, pods: Sequence[Manifest], probes: Mapping[str, Probe]
) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """Whose settings are others than wanted, and who may have to go."""
    staying = [pod for pod in pods if _name(pod) in probes and "deletionTimestamp" not in pod["metadata"]]
    others = (pod for pod in staying if probes[_name(pod)].body.get("settings") not in (None, questions.settings))
    return tuple(others), tuple(staying) if len(staying) > questions.replicas > 0 else ()


async def _managed(cluster: Cluster, pods: Sequence[Manifest], path: str) -> dict[str, Probe]:
    answers = await asyncio.gather(*(cluster.manage(pod, "GET", path) for pod in pods))
    return {_name(pod): answer for pod, answer in zip(pods, answers, strict=True)}


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def _sorted(manifests: object) -> tuple[Manifest, ...]:
    return tuple(sorted(manifests, key=lambda found: str(found["metadata"]["name"])))  # type: ignore[call-overload]


def _label(manifest: Manifest, name: str) -> str | None:
    labels: Mapping[str, str] = manifest["metadata"].get("labels") or {}
    return labels.get(name)
