"""Carries actions out, and hands back what the cluster refused, in its own words.

A refusal (a quota on claims, an admission webhook, a field that can't change) belongs in the status: repeating it helps nobody.
Every other error goes up to the worker, which tries again later. Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagemill.endpoints import CONFIG_PATH
from pagemill_operator.cluster.interface import Cluster, ClusterError, NameTaken, NoSuchKind, Probe
from pagemill_operator.plan import Action, Annotate, Apply, Delete, Manage

# Without these a deployment serves all the same: a refusal degrades it, and Ready stays what the pods say.
SETTINGS = "settings"  # hot ones: no kind, but refused by a replica all the same
SCALERS = ("ScaledObject", "TriggerAuthentication")  # KEDA's
BESIDE = (SETTINGS, "PodMonitor", "HTTPRoute", "InferencePool", "PodDisruptionBudget", "NetworkPolicy", *SCALERS)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write that the cluster refused, in its words."""

    kind: str
    message: str
    no_such_kind: bool = False  # its CRD is not installed

    @property
    def beside(self) -> bool:
        """Whether the deployment serves without it."""
        return self.kind in BESIDE


async def apply(cluster: Cluster, actions: Sequence[Action]) -> tuple[Refusal, ...]:
    """One write after the other, in order; a refused one does not hold up the rest. Returns the refusals.

    But for pods that would run as another's account, write into another's claim, or lack their token: they are not made. And a
    replica that can't be marked is not drained: nobody would know that it is to be called back.
    """
    refusals: list[Refusal] = []
    withheld, unmarked = False, set[str]()
    for action in actions:
        if withheld and isinstance(action, Apply) and action.manifest["kind"] == "Deployment":
            continue
        if isinstance(action, Manage) and action.method == "POST" and _pod(action) in unmarked:
            continue
        try:
            refusals += await _carry_out(cluster, action)
        except ClusterError as error:
            if not error.refused:
                raise
            if isinstance(action, Annotate):
                unmarked.add(_pod(action))
            withheld = withheld or isinstance(error, NameTaken) or _is_token(action)
            refusals.append(_refusal(action, error))
    return tuple(refusals)


async def _carry_out(cluster: Cluster, action: Action) -> tuple[Refusal, ...]:
    """What a replica itself refuses is told like what the cluster refuses."""
    match action:
        case Apply(manifest):
            await cluster.apply(manifest)
        case Delete(ref):
            await cluster.delete(ref)
        case Manage(pod, method, path, body):
            # A pod that does not answer is asked again at the next look.
            answer = await cluster.manage(pod, method, path, body)
            if path == CONFIG_PATH and 400 <= answer.status < 500:
                return (Refusal(SETTINGS, _words(answer)),)
        case Annotate(pod, annotations):
            await cluster.annotate(pod, annotations)
    return ()


def _words(answer: Probe) -> str:
    said = answer.body.get("error")
    words = said.get("message") if isinstance(said, Mapping) else None
    return str(words or f"it answers {answer.status} and does not say why")


def _pod(action: Manage | Annotate) -> str:
    return str(action.pod["metadata"]["name"])


def _is_token(action: Action) -> bool:
    return isinstance(action, Apply) and action.manifest["kind"] == "Secret"


def _refusal(action: Action, error: ClusterError) -> Refusal:
    match action:
        case Apply(manifest):
            kind, name = manifest["kind"], manifest["metadata"]["name"]
        case Delete(ref):
            kind, name = ref.kind, ref.name
        case Manage(pod) | Annotate(pod):
            kind, name = "Pod", pod["metadata"]["name"]
    return Refusal(kind, f"{kind} {name}: {error}", isinstance(error, NoSuchKind))
