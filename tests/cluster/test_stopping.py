"""A stop at the worst moment, and what is left of it."""

from __future__ import annotations

from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import deploy
from testbed.ready import eventually

pytestmark = pytest.mark.cluster


def test_a_server_stopped_while_it_starts_ends_at_once(pagemill: Cluster, namespace: str) -> None:
    """A container's first process gets no signal that it has no handler for: the server must have one before it imports torch."""
    deployed = deploy(pagemill, namespace, "early", rollout={"drainTimeoutSeconds": 300})
    pod = eventually("a container", lambda: next((pod for pod in deployed.pods() if runs(pod)), None))
    pagemill.kubectl("delete", "pod", pod["metadata"]["name"], "-n", namespace, "--wait=false")
    uid = pod["metadata"]["uid"]
    # Its grace period is 325 s.
    eventually("the pod's end", lambda: uid not in [pod["metadata"]["uid"] for pod in deployed.pods()] or None, 120)


def runs(pod: dict[str, Any]) -> bool:
    return any("running" in status["state"] for status in pod["status"].get("containerStatuses", []))
