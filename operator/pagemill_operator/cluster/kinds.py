"""Where each kind that the operator reads or writes lives in the API, and what it must be allowed to do there.

`RULES` is the whole of the operator's RBAC in each namespace that it serves, `CLUSTER_RULES` what it has besides where it
serves all of them; the chart must say the same (a test compares them). Nothing else is asked for: no Secret is read, no exec,
no namespaces or CRDs to list (discovery is open to every account).
"""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_operator.labels import GROUP, KIND, PLURAL, VERSION

READ = ("list", "watch")  # all reads come from lists and their watches
WRITE = ("create", "patch", "delete")
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class ApiKind:
    """One kind: `prefix` is its part of the URL up to the namespace.

    `followed`: kept in the cache by its events. `listed`: kept in it by each resync's lists and our own writes, because the API
    may not have the kind at all (its CRD belongs to somebody else).
    """

    group: str  # "" for the core group
    version: str
    kind: str
    plural: str
    verbs: tuple[str, ...]
    followed: bool = False
    listed: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"


RESOURCE = ApiKind(GROUP, VERSION, KIND, PLURAL, READ, followed=True)
EVENT = ApiKind("", "v1", "Event", "events", ("list", "create"))
NODE = ApiKind("", "v1", "Node", "nodes", ("list",))
SECRET = ApiKind("", "v1", "Secret", "secrets", ("create", "patch"))  # written, never read; its owner's end removes it

KINDS = (
    RESOURCE,
    ApiKind("apps", "v1", "Deployment", "deployments", READ + WRITE, followed=True),
    ApiKind("", "v1", "Pod", "pods", (*READ, "patch"), followed=True),
    ApiKind("", "v1", "Service", "services", READ + WRITE, followed=True),
    ApiKind("", "v1", "ServiceAccount", "serviceaccounts", READ + WRITE, followed=True),
    ApiKind("", "v1", "ConfigMap", "configmaps", READ + WRITE, followed=True),
    ApiKind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", READ + WRITE, followed=True),
    ApiKind("batch", "v1", "Job", "jobs", READ + WRITE, followed=True),
    ApiKind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", READ + WRITE, followed=True),
    ApiKind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", READ + WRITE, followed=True),
    ApiKind(RBAC, "v1", "Role", "roles", READ + WRITE, followed=True),  # of gateways; with no right but one of our own
    ApiKind(RBAC, "v1", "RoleBinding", "rolebindings", READ + WRITE, followed=True),
    ApiKind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", ("list", *WRITE), listed=True),
    ApiKind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", ("list", *WRITE), listed=True),
    ApiKind("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools", ("list", *WRITE), listed=True),
    ApiKind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects", ("list", *WRITE), listed=True),
    ApiKind("keda.sh", "v1alpha1", "TriggerAuthentication", "triggerauthentications", ("list", *WRITE), listed=True),
    EVENT,
    SECRET,
)
FOLLOWED = tuple(kind for kind in KINDS if kind.followed)
LISTED = tuple(kind for kind in KINDS if kind.listed)
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
    # Never asked for here: Kubernetes lets nobody grant what they have not, and gateways look for replicas there.
    Rule("discovery.k8s.io", "endpointslices", READ),
    # Nothing is ever written there: some clusters (OwnerReferencesPermissionEnforcement) ask it of whoever makes a child that
    # a foreground deletion is to wait for.
    Rule(GROUP, f"{PLURAL}/finalizers", ("update",)),
)
CLUSTER_RULES = (Rule(NODE.group, NODE.plural, NODE.verbs),)  # nodes are in no namespace
