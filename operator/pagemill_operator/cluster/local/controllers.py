"""Deployments and ReplicaSets on one machine: after every change of the store, what follows from it is made true.

Level-triggered like Kubernetes' own: `sync` looks at the whole store and takes the next steps; `rollout` says how many pods each
revision gets. Knows nothing of processes: it makes Pod objects, and `node` runs them. Called by `cluster`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.cluster.local.pod_status import is_ready, with_conditions
from pagemill_operator.cluster.local.rollout import Revision, Strategy, next_counts, read_strategy
from pagemill_operator.cluster.local.store import ObjectStore, now

HASH_LABEL = "pod-template-hash"
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"


def sync(store: ObjectStore) -> None:
    """One pass over all Deployments. What it changes notifies the store's listeners, which ask for another pass."""
    for deployment in store.all("Deployment"):
        _sync_deployment(store, deployment)
    for replica_set in store.all("ReplicaSet"):
        _sync_replica_set(store, replica_set)


def _sync_deployment(store: ObjectStore, deployment: Manifest) -> None:
    desired = deployment["spec"].get("replicas", 1)
    strategy = read_strategy(deployment["spec"], desired)
    wanted = _wanted_replica_set(store, deployment)
    others = sorted(
        (
            found
            for found in store.owned_by(deployment, "ReplicaSet")
            if found["metadata"]["name"] != wanted["metadata"]["name"]
        ),
        key=_revision_number,
    )
    new, old = _observe(store, wanted), [_observe(store, found) for found in others]
    counts = next_counts(desired, strategy, new, old)
    for replica_set in (*others, wanted):
        _scale(store, replica_set, counts[replica_set["metadata"]["name"]])
    _forget_history(store, deployment, others, old)
    _write_deployment_status(store, deployment, desired, strategy, new, old)


def _wanted_replica_set(store: ObjectStore, deployment: Manifest) -> Manifest:
    """The ReplicaSet of the current template, made (or, after a rollback, made the newest) when it is not there."""
    template = deployment["spec"]["template"]
    hashed = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    metadata = deployment["metadata"]
    name = f"{metadata['name']}-{hashed}"
    siblings = store.owned_by(deployment, "ReplicaSet")
    newest = max((_revision_number(found) for found in siblings), default=0)
    found = store.get("ReplicaSet", metadata["namespace"], name)
    if found is not None and _revision_number(found) == newest:
        return found
    labels = {**(template["metadata"].get("labels") or {}), HASH_LABEL: hashed}
    return store.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": {REVISION_ANNOTATION: str(newest + 1)},
                "ownerReferences": [_owner(deployment)],
            },
            "spec": {
                "replicas": found["spec"]["replicas"] if found is not None else 0,
                "selector": {"matchLabels": {**deployment["spec"]["selector"]["matchLabels"], HASH_LABEL: hashed}},
                "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
            },
        }
    )


def _observe(store: ObjectStore, replica_set: Manifest) -> Revision:
    pods = store.owned_by(replica_set, "Pod")
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return Revision(
        name=replica_set["metadata"]["name"],
        replicas=replica_set["spec"]["replicas"],
        pods=len(alive),
        ready=sum(is_ready(pod) for pod in alive),
        terminating=len(pods) - len(alive),
    )


def _scale(store: ObjectStore, replica_set: Manifest, replicas: int) -> None:
    if replica_set["spec"]["replicas"] != replicas:
        store.apply({**replica_set, "spec": {**replica_set["spec"], "replicas": replicas}})


def _forget_history(
    store: ObjectStore, deployment: Manifest, others: Sequence[Manifest], old: Sequence[Revision]
) -> None:
    idle = [
        replica_set
        for replica_set, revision in zip(others, old, strict=True)
        if not (revision.replicas or revision.pods or revision.terminating)
    ]
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    for replica_set in idle[: max(0, len(idle) - limit)]:
        store.remove(replica_set)


def _write_deployment_status(
    store: ObjectStore,
    deployment: Manifest,
    desired: int,
    strategy: Strategy,
    new: Revision,
    old: Sequence[Revision],
) -> None:
    revisions = (new, *old)
    total, ready = sum(one.pods for one in revisions), sum(one.ready for one in revisions)
    complete = new.ready == desired == new.pods and total == new.pods
    available = ready >= desired - strategy.max_unavailable
    before = deployment.get("status") or {}
    counts = {
        "replicas": total,
        "updatedReplicas": new.pods,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, max(total, desired) - ready),
    }
    conditions = with_conditions(
        before.get("conditions") or (),
        _condition("Available", available, "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"),
        _condition("Progressing", True, "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"),
    )
    status = {"observedGeneration": deployment["metadata"]["generation"], "conditions": conditions}
    store.set_status(deployment, status | {name: count for name, count in counts.items() if count})


def _sync_replica_set(store: ObjectStore, replica_set: Manifest) -> None:
    pods = [pod for pod in store.owned_by(replica_set, "Pod") if "deletionTimestamp" not in pod["metadata"]]
    wanted = replica_set["spec"]["replicas"]
    for _ in range(wanted - len(pods)):
        store.apply(_new_pod(replica_set))
    for pod in sorted(pods, key=_leaves_first)[: max(0, len(pods) - wanted)]:
        store.mark_deleted(pod)
    ready = sum(is_ready(pod) for pod in pods)
    counts = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
    generation = {"observedGeneration": replica_set["metadata"]["generation"]}
    store.set_status(replica_set, generation | counts)


def _new_pod(replica_set: Manifest) -> Manifest:
    template, metadata = replica_set["spec"]["template"], replica_set["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{secrets.token_hex(3)[:5]}",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": dict(template["metadata"].get("annotations") or {}),
            "ownerReferences": [_owner(replica_set)],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }


def _leaves_first(pod: Manifest) -> tuple[bool, bool, int, int]:
    """Kubernetes' order of who goes when a ReplicaSet shrinks: who waits, the unready, then the cheap, then the young."""
    waits = (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    cost = int((pod["metadata"].get("annotations") or {}).get(COST_ANNOTATION, "0"))
    return (not waits, is_ready(pod), cost, -int(pod["metadata"]["resourceVersion"]))


def _owner(owner: Manifest) -> dict[str, Any]:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _revision_number(replica_set: Manifest) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION_ANNOTATION, "0"))


def _condition(kind: str, met: bool, reason: str) -> dict[str, str]:
    return {"type": kind, "status": str(met), "reason": reason, "lastTransitionTime": now()}
