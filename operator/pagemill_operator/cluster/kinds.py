"""Where each kind that the operator reads or writes lives in the API, and what it must be allowed to do there.

`RULES` is the whole of the operator's RBAC, in one namespace or in all; the chart's Role must say the same (a test compares
them). Nothing else is asked for: no Secrets, no exec, no namespaces or CRDs to list (discovery is open to every account).
"""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_operator.labels import GROUP, KIND, PLURAL, VERSION

READ = ("list", "watch")  # all reads come from lists and their watches
WRITE = ("create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ApiKind:
    """One kind: `prefix` is its part of the URL up to the namespace. `followed`: kept in the cache by its events."""

    group: str  # "" for the core group
    version: str
    kind: str
    plural: str
    verbs: tuple[str, ...]
    followed: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"


RESOURCE = ApiKind(GROUP, VERSION, KIND, PLURAL, READ, followed=True)
EVENT = ApiKind("", "v1", "Event", "events", ("list",))

KINDS = (
    RESOURCE,
    ApiKind("apps", "v1", "Deployment", "deployments", READ + WRITE, followed=True),
    ApiKind("apps", "v1", "ReplicaSet", "replicasets", READ, followed=True),
    ApiKind("", "v1", "Pod", "pods", READ, followed=True),
    ApiKind("", "v1", "Service", "services", READ + WRITE, followed=True),
    ApiKind("", "v1", "ServiceAccount", "serviceaccounts", READ + WRITE, followed=True),
    ApiKind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", READ + WRITE, followed=True),
    EVENT,
)
FOLLOWED = tuple(kind for kind in KINDS if kind.followed)
BY_KIND = {kind.kind: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the Role."""

    group: str
    resource: str
    verbs: tuple[str, ...]


RULES = (
    *(Rule(kind.group, kind.plural, kind.verbs) for kind in KINDS),
    Rule(GROUP, f"{PLURAL}/status", ("patch",)),
)
