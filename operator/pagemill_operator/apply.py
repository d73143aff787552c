"""Carries actions out, and hands back what the cluster refused, in its own words.

A refusal (a quota on claims, an admission webhook, a field that can't change) belongs in the status: repeating it helps nobody.
Every other error goes up to the worker, which tries again later. Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagemill_operator.cluster.interface import Cluster, ClusterError, NameTaken
from pagemill_operator.plan import Action, Apply


async def apply(cluster: Cluster, actions: Sequence[Action]) -> tuple[str, ...]:
    """One write after the other, in order; a refused one does not hold up the rest. Returns the refusals.

    But for pods that would run as another's account, or write into another's claim: they are not made.
    """
    refusals, taken = [], False
    for action in actions:
        if taken and isinstance(action, Apply) and action.manifest["kind"] == "Deployment":
            continue
        try:
            if isinstance(action, Apply):
                await cluster.apply(action.manifest)
            else:
                await cluster.delete(action.ref)
        except ClusterError as error:
            if not error.refused:
                raise
            taken = taken or isinstance(error, NameTaken)
            refusals.append(_named(action, str(error)))
    return tuple(refusals)


def _named(action: Action, message: str) -> str:
    if isinstance(action, Apply):
        return f"{action.manifest['kind']} {action.manifest['metadata']['name']}: {message}"
    return f"{action.ref.kind} {action.ref.name}: {message}"
