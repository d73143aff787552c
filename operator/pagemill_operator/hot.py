"""Which running replicas have other hot settings than the spec wants, and how they are told.

A ConfigMap holds them for servers that start; running ones are told by PATCH /config whenever the digest on their /ready differs
from the wanted one, whoever changed it. Pure. Called by `steer` (the calls) and `pending` (what is not there yet).
"""

from __future__ import annotations

from collections.abc import Iterator

from pagemill.endpoints import CONFIG_PATH
from pagemill.hot_settings import digest
from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.hot_settings import FIELDS, settings_of
from pagemill_operator.observe import World
from pagemill_operator.plan import Manage
from pagemill_operator.spec import LLMDeploymentSpec


def outdated(wanted: str, world: World) -> Iterator[Manifest]:
    """Pods that serve with other settings than those of the digest `wanted`."""
    for pod in world.pods:
        probe = world.probes.get(pod["metadata"]["name"])
        if "deletionTimestamp" not in pod["metadata"] and probe is not None and differs(wanted, probe):
            yield pod


def differs(wanted: str, ready: Probe) -> bool:
    """Whether a replica's /ready tells of other settings. One that loads reads them from its file, one that drains needs none."""
    said = ready.body.get("settings")
    return ready.body.get("phase") == "Serving" and isinstance(said, str) and said != wanted


def patches(spec: LLMDeploymentSpec, world: World) -> Iterator[Manage]:
    """A call to each replica that has other settings."""
    settings = settings_of(spec)
    for pod in outdated(digest(settings), world):
        yield Manage(pod, "PATCH", CONFIG_PATH, settings)


def pending_fields(spec: LLMDeploymentSpec, world: World) -> set[str]:
    """Paths of the spec's hot fields that some replica does not have yet; all of them where it does not say which."""
    settings, pending = settings_of(spec), set()
    for pod in outdated(digest(settings), world):
        answer = world.configs.get(pod["metadata"]["name"])
        found = answer.body.get("settings") if answer is not None else None
        known = found if isinstance(found, dict) else {}
        pending |= {FIELDS[name] for name, value in settings.items() if name not in known or known[name] != value}
    return pending
