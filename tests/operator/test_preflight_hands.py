"""What hands and lost nodes do to a preflight: no replica is restarted for it, and no look at a model is the last one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pagemill_operator.labels import PREFLIGHT_ANNOTATION
from tests.operator.manifests import MODEL
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import running
from tests.operator.preflight_cluster import KEY, NOW, PINNED, SHA, ended, job, jobs, put_job_pod, run, serving

GARBAGE = ["", "garbage", "[]", '{"template": ""}x', '{"template": "x", "fit": "Fits"}', "[" * 9000]


def model(cluster: MemoryCluster) -> str:
    (container,) = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"]
    return str(container["command"][-1])


@pytest.mark.parametrize("text", [None, *GARBAGE])
async def test_a_record_that_a_hand_has_spoilt_restarts_nobody(text: str | None) -> None:
    """What runs keeps the commit that it was given; the branch may have moved meanwhile."""
    cluster = await serving()
    deployment = cluster.child("Deployment")
    template = copy.deepcopy(deployment["spec"]["template"])
    del deployment["metadata"]["annotations"][PREFLIGHT_ANNOTATION]
    if text is not None:
        deployment["metadata"]["annotations"][PREFLIGHT_ANNOTATION] = text
    await run(cluster, passes=3)
    assert cluster.child("Deployment")["spec"]["template"] == template
    assert cluster.status(KEY)["modelRevision"] == SHA
    assert cluster.condition(KEY, "Ready")["status"] == "True"
    cluster.writes.clear()
    await run(cluster, passes=20)
    assert (cluster.writes, jobs(cluster)) == ([], [])


@pytest.mark.parametrize("command", [f"hf://other/model@{SHA}", f"file:///{MODEL}@{SHA}", f"{MODEL}@main", ""])
async def test_a_command_that_no_preflight_gave_is_put_right(command: str) -> None:
    cluster = await serving()
    deployment = cluster.child("Deployment")
    del deployment["metadata"]["annotations"][PREFLIGHT_ANNOTATION]
    deployment["spec"]["template"]["spec"]["containers"][0]["command"][-1] = command
    await run(cluster, passes=2)
    assert model(cluster) == PINNED.pinned, "what the template's own record says"


@pytest.mark.parametrize("text", [None, *GARBAGE])
async def test_nor_does_it_let_in_what_was_changed_in_sleep(text: str | None) -> None:
    cluster = await serving()
    annotations = cluster.child("Deployment")["metadata"]["annotations"]
    del annotations[PREFLIGHT_ANNOTATION]
    if text is not None:
        annotations[PREFLIGHT_ANNOTATION] = text
    cluster.edit(KEY, suspend=True, model="org/other")
    await run(cluster, passes=2)
    cluster.edit(KEY, suspend=None)
    await run(cluster)
    assert cluster.child("Deployment")["spec"]["replicas"] == 0
    assert len(jobs(cluster)) == 1


def lost(**container: Any) -> dict[str, Any]:
    """As Kubernetes writes it when the node is gone: nobody knows when it ended."""
    end = {"exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": None, **container}
    return {
        "phase": "Failed",
        "containerStatuses": [{"name": "preflight", "restartCount": 0, "state": {"terminated": end}}],
    }


@pytest.mark.parametrize("status", [lost(), {"phase": "Failed", "reason": "Evicted"}], ids=["unknown", "evicted"])
@pytest.mark.parametrize("told", [True, False], ids=["job-failed", "job-silent"])
async def test_an_end_of_which_nobody_knows_when_is_tried_again(status: dict[str, Any], told: bool) -> None:
    cluster = MemoryCluster({**(await serving()).manifests[KEY], "status": {}})
    await run(cluster)
    made, time = job(cluster), NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    made["metadata"]["creationTimestamp"] = time
    if told:
        made["status"] = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": time}]}
    put_job_pod(cluster, status)
    for seconds in range(0, 30, 5):
        await run(cluster, at=seconds)
        assert job(cluster)["metadata"]["name"] == made["metadata"]["name"]
    await run(cluster, at=31)
    await run(cluster, at=32)
    assert [one["metadata"]["name"] for one in jobs(cluster)] != [made["metadata"]["name"]]


@pytest.mark.parametrize(
    "notes",
    [
        {"pagemill.dev/preflight-attempt": "²"},
        {"pagemill.dev/preflight-attempt": "9" * 5000},
        {"pagemill.dev/preflight-attempt": "-1"},
        {"pagemill.dev/preflight-trouble": json.dumps({"reason": "has spaces", "message": "m"})},
        {"pagemill.dev/preflight-trouble": json.dumps({"reason": None, "message": "m"})},
        {"pagemill.dev/preflight-trouble": "[" * 9000},
        {"pagemill.dev/preflight-trouble": "[]"},
    ],
)
async def test_a_jobs_notes_may_say_anything(notes: dict[str, str]) -> None:
    cluster = MemoryCluster({**(await serving()).manifests[KEY], "status": {}})
    await run(cluster)
    job(cluster)["metadata"]["annotations"] |= notes
    put_job_pod(cluster, running(False))
    await run(cluster)
    put_job_pod(cluster, ended(1, "it ends"))
    assert await run(cluster, at=5) is not None
    assert cluster.condition(KEY, "Ready")["reason"] == "PreflightFailed"
