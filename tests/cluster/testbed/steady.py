"""A model that serves and the operators over it, which a test then troubles: what has been restarted, and what has come back.

Called by test_api_pressure and test_faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from testbed.cluster import Cluster
from testbed.control_plane import ControlPlane
from testbed.deployments import Deployed, deploy
from testbed.operators import Operators
from testbed.ready import eventually


@dataclass(frozen=True)
class World:
    """A model that serves, and those who look after it."""

    cluster: Cluster
    operators: Operators
    model: Deployed

    @property
    def control_plane(self) -> ControlPlane:
        assert self.cluster.node
        return self.cluster.node.control_plane

    def processes(self) -> dict[str, tuple[str, int]]:
        """Every pod of the model and of the operator: name → (uid, restarts)."""
        pods = [*self.model.pods(), *self.operators.pods().values()]
        return {
            pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
            for pod in pods
        }

    def child(self, kind: str, name: str) -> dict[str, Any]:
        """Of the model's namespace."""
        return self.cluster.get(kind, name, "-n", self.model.namespace)

    def comes_back(self, kind: str, name: str, taken: str) -> None:
        """Wait for one of that name that is not the one that was taken away, by its uid."""

        def look() -> bool | None:
            return self.child(kind, name)["metadata"]["uid"] != taken or None

        eventually(f"the {kind} {name} again", look)


@contextmanager
def steady(cluster: Cluster, namespace: str) -> Iterator[World]:
    """The model `steady` in a namespace of its own, which goes in the end, and the leader with another operator beside it."""
    cluster.kubectl("create", "namespace", namespace)
    model = deploy(cluster, namespace, "steady", model="pagemill/tiny", maxModelLen=128)
    model.await_condition("Ready", "True", seconds=600)
    operators = Operators(cluster)
    operators.standby()
    try:
        yield World(cluster, operators, model)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
