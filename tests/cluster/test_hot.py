"""Hot fields on a real Kubernetes: the process that serves takes them over, has them after a restart, says what it can't take."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from streams import Streams
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy, manifest
from testbed.ready import eventually

from pagemill import hot_settings
from pagemill_operator.hot_settings import settings_of
from pagemill_operator.resource import read

pytestmark = pytest.mark.cluster

MODEL = "pagemill/tiny"
PATIENCE = 600.0
# Sent in one go, each with another value than its default.
EVERY_HOT_FIELD: dict[str, Any] = {
    "schedulingPolicy": "fair",
    "scheduling": {
        "agingSeconds": 5,
        "ttftMs": 200,
        "weights": {"a": 2},
        "maxQueuedRequests": 50,
        "maxQueuedTokens": 100_000,
    },
}
IN_FORCE = settings_of(read(manifest("hot", **EVERY_HOT_FIELD)).spec)
assert sorted(IN_FORCE) == sorted(hot_settings.NAMES)


@pytest.fixture(scope="module")
def deployed(pagemill: Cluster) -> Iterator[Deployed]:
    """One replica that serves."""
    pagemill.kubectl("create", "namespace", "hot")
    made = deploy(pagemill, "hot", "hot", model=MODEL)
    made.await_condition("Ready", "True", seconds=PATIENCE)
    yield made
    pagemill.kubectl("delete", "namespace", "hot", "--wait=false")


def change(deployed: Deployed, **spec: Any) -> None:
    patch = json.dumps({"spec": spec})
    deployed.cluster.kubectl("patch", "llmd", deployed.name, "-n", deployed.namespace, "--type=merge", "-p", patch)


def process(deployed: Deployed) -> tuple[str, str]:
    """The container that runs and when it was started."""
    (pod,) = deployed.pods()
    status = pod["status"]["containerStatuses"][0]
    return status["containerID"], status["state"]["running"]["startedAt"]


def config(deployed: Deployed, **asked: Any) -> dict[str, Any]:
    """What is in force on the replica, after a change by hand if one is asked for."""
    secret = deployed.cluster.get("secret", f"{deployed.name}-management", "-n", deployed.namespace)
    (pod,) = deployed.pods()
    with httpx.Client(
        base_url=f"http://{pod['status']['podIP']}:8001",
        headers={"authorization": f"Bearer {base64.b64decode(secret['data']['token']).decode()}"},
        timeout=60,
    ) as client:
        answer = client.patch("/config", json=asked) if asked else client.get("/config")
        found: dict[str, Any] = answer.raise_for_status().json()["config"]
    return found


def await_policy(deployed: Deployed, name: str) -> None:
    eventually(f"policy {name}", lambda: config(deployed)["policy"] == name or None, PATIENCE)


def test_the_process_stays_and_so_does_the_stream_that_runs_in_it(deployed: Deployed) -> None:
    """kubeai#219: a change of the spec reaches what runs."""
    before = process(deployed)
    with Streams(deployed.address(), MODEL, count=1, tokens=400) as streams:
        streams.all_open()
        finished = streams.tally.finished
        change(deployed, **EVERY_HOT_FIELD)
        await_policy(deployed, "fair")
        found = config(deployed)
        assert {name: found[name] for name in IN_FORCE} == IN_FORCE
        streams.until("the stream's end", lambda tally: tally.finished > finished)
    assert (streams.tally.cut, streams.tally.failed) == ([], [])
    assert process(deployed) == before
    eventually("nothing pending", lambda: "rollout" not in deployed.get()["status"] or None)


def test_what_a_hand_set_is_put_right(deployed: Deployed) -> None:
    assert config(deployed, policy="deadline")["policy"] == "deadline"
    (pod,) = deployed.pods()  # any event makes the operator look
    name = pod["metadata"]["name"]
    deployed.cluster.kubectl("annotate", "pod", name, "-n", deployed.namespace, "tests.pagemill.dev/look=1")
    await_policy(deployed, "fair")


def test_a_container_that_starts_again_has_them(deployed: Deployed) -> None:
    with Streams(deployed.address(), MODEL, count=4, tokens=400) as streams:
        streams.all_open()
        deployed.cluster.kill_container(process(deployed)[0])
        streams.until("a stream that is cut short is told of", lambda tally: bool(tally.cut))

    def again() -> bool | None:
        (pod,) = deployed.pods()
        return pod["status"]["containerStatuses"][0]["restartCount"] == 1 or None

    eventually("a restart", again)
    deployed.await_condition("Ready", "True", seconds=PATIENCE)
    await_policy(deployed, "fair")
    assert config(deployed)["weights"] == {"a": 2}


def test_settings_that_it_can_not_take_are_told_and_it_serves_on(deployed: Deployed) -> None:
    before = process(deployed)
    change(deployed, schedulingPolicy="nowhere:Policy")
    told = deployed.await_condition("Degraded", "True", "SettingsRefused")
    assert "there is no module nowhere" in told["message"]
    assert deployed.condition("Ready")["status"] == "True"
    assert deployed.get()["status"]["rollout"] == {"pendingFields": ["schedulingPolicy"], "class": "hot"}
    change(deployed, schedulingPolicy="priority")
    await_policy(deployed, "priority")
    deployed.await_condition("Degraded", "False")
    assert process(deployed) == before
