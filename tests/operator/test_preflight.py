"""A model is looked at by a Job before its pods start: what passes, what is tried again, what is kept."""

from __future__ import annotations

import json

import pytest

from pagemill.preflight_report import Report
from pagemill_operator.reconcile import reconcile
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import MODEL, stored
from tests.operator.memory_cluster import MemoryCluster
from tests.operator.pod_statuses import running
from tests.operator.preflight_cluster import (
    CAPACITY,
    GATED,
    KEY,
    NOW,
    SHA,
    arguments,
    drop_orphans,
    ended,
    job,
    jobs,
    look,
    passed,
    put_job_pod,
    run,
    serving,
    value,
)


async def test_no_pod_starts_before_the_model_was_looked_at() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    assert ("Deployment", "chat") not in cluster.objects
    assert arguments(cluster)[:3] == ["pagemill", "preflight", MODEL]
    put_job_pod(cluster, running(False))
    await run(cluster)
    assert ("Deployment", "chat") not in cluster.objects
    assert "looks at the model" in str((await look(cluster)).running)


async def test_what_has_passed_starts_pods_of_the_pinned_model_and_the_job_goes() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, passed())
    await run(cluster)
    (container,) = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["pagemill", "serve", f"hf://{MODEL}@{SHA}"]
    assert container["args"][container["args"].index("--served-model-name") + 1] == MODEL
    assert len(jobs(cluster)) == 1, "it goes once the Deployment says what it found"
    await run(cluster)
    assert jobs(cluster) == []
    found = await look(cluster)
    assert (found.passed, found.revision, found.fit, found.capacity) == (True, SHA, "Fits", CAPACITY)


async def test_a_model_that_the_image_has_is_served_by_its_name() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, passed(Report("Fits")))
    await run(cluster, passes=2)
    (container,) = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["pagemill", "serve", MODEL]
    assert jobs(cluster) == []


@pytest.mark.parametrize("passes", ["before", "after"])
async def test_a_world_that_stays_is_not_written_to(passes: str) -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, running(False) if passes == "before" else passed())
    await run(cluster, passes=3)
    cluster.writes.clear()
    await run(cluster, passes=50)
    assert cluster.writes == []


async def test_pods_that_an_operator_without_preflight_made_are_not_restarted() -> None:
    cluster = MemoryCluster(stored())
    await reconcile(cluster, KEY, NOW, SETTINGS)
    before = json.dumps(cluster.child("Deployment")["spec"])
    cluster.writes.clear()
    await run(cluster)
    assert json.dumps(cluster.child("Deployment")["spec"]) == before
    assert jobs(cluster) == []


async def test_nor_those_that_passed_when_looking_is_switched_off() -> None:
    cluster = await serving()
    await reconcile(cluster, KEY, NOW, SETTINGS)
    assert cluster.writes == []


async def test_a_failure_is_told_with_when_it_is_looked_at_again() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, ended(1, GATED.to_line()))
    assert await run(cluster, at=10) == 20
    found = await look(cluster, at=10)
    assert found.trouble is not None
    assert found.trouble.reason == "GatedModel"
    assert "org/name is gated" in found.trouble.message
    assert "30 s" in found.trouble.message
    assert ("Deployment", "chat") not in cluster.objects
    assert cluster.condition(KEY, "Ready")["reason"] == "GatedModel"


async def test_attempts_follow_one_another_at_growing_distances() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    clock, pauses = 0.0, []
    for _ in range(8):
        name = job(cluster)["metadata"]["name"]
        put_job_pod(cluster, ended(1, GATED.to_line(), at=clock))
        left = (await look(cluster, at=clock)).again
        assert left is not None
        pauses.append(left)
        await run(cluster, at=clock + left - 1)
        assert job(cluster)["metadata"]["name"] == name
        clock += left
        await run(cluster, at=clock)
        drop_orphans(cluster)
        assert job(cluster)["metadata"]["name"] != name
        retried = await look(cluster, at=clock)
        assert retried.trouble is not None, "while it is tried again it is not mended"
        assert retried.running is None
    assert pauses == [30, 60, 120, 240, 480, 600, 600, 600]


async def test_a_change_of_the_spec_looks_at_once() -> None:
    cluster = MemoryCluster(stored())
    await run(cluster)
    put_job_pod(cluster, ended(1, GATED.to_line()))
    await run(cluster, at=1)
    failed = job(cluster)["metadata"]["name"]
    cluster.edit(KEY, hfTokenSecretRef={"name": "hub"})
    await run(cluster, at=2)
    drop_orphans(cluster)
    assert job(cluster)["metadata"]["name"] != failed
    assert (await look(cluster, at=2)).trouble is None


async def test_so_does_a_word_about_the_gpus_memory_which_restarts_no_pod() -> None:
    cluster = MemoryCluster(stored(accelerator="gpu", gpu={"memoryGiB": 16}))
    await run(cluster)
    assert value(cluster, "--memory") == str(16 << 30)
    cluster.edit(KEY, gpu={"memoryGiB": 24})
    await run(cluster)
    assert value(cluster, "--memory") == str(24 << 30)


async def test_old_pods_serve_while_a_new_model_is_looked_at() -> None:
    cluster = await serving()
    before = json.dumps(cluster.child("Deployment"))
    cluster.edit(KEY, model="org/other")
    await run(cluster)
    put_job_pod(cluster, ended(1, GATED.to_line()))
    await run(cluster)
    assert json.dumps(cluster.child("Deployment")) == before
    assert "org/other" in arguments(cluster)


async def test_they_are_scaled_meanwhile() -> None:
    """What a replica was drained for must come: else it would neither serve nor go."""
    cluster = await serving()
    template = json.dumps(cluster.child("Deployment")["spec"]["template"])
    cluster.edit(KEY, model="org/other", replicas=3)
    await run(cluster)
    put_job_pod(cluster, ended(1, GATED.to_line()))
    await run(cluster)
    deployment = cluster.child("Deployment")
    assert deployment["spec"]["replicas"] == 3
    assert json.dumps(deployment["spec"]["template"]) == template
    assert json.loads(deployment["metadata"]["annotations"]["pagemill.dev/preflight"])["model"] == MODEL
    cluster.writes.clear()
    await run(cluster, passes=20)
    assert cluster.writes == []
    put_job_pod(cluster, passed(Report("Fits")))
    await run(cluster)
    (container,) = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "org/other"


async def test_the_revision_stays_while_the_model_does() -> None:
    cluster = await serving()
    cluster.edit(KEY, maxModelLen=256)
    await run(cluster)
    assert value(cluster, "--revision") == SHA
    put_job_pod(cluster, passed())
    await run(cluster, passes=2)
    drop_orphans(cluster)
    cluster.edit(KEY, model="org/other")
    await run(cluster)
    assert value(cluster, "--revision") is None


async def test_suspended_takes_nothing_and_looks_when_it_wakes() -> None:
    cluster = MemoryCluster(stored(suspend=True))
    await run(cluster)
    assert jobs(cluster) == []
    assert cluster.child("Deployment")["spec"]["replicas"] == 0
    cluster.edit(KEY, suspend=False)
    await run(cluster)
    assert cluster.child("Deployment")["spec"]["replicas"] == 0
    put_job_pod(cluster, passed())
    await run(cluster)
    assert cluster.child("Deployment")["spec"]["replicas"] == 1


async def test_one_that_served_sleeps_and_wakes_without_another_look() -> None:
    cluster = await serving()
    cluster.edit(KEY, suspend=True)
    await run(cluster)
    cluster.edit(KEY, suspend=False)
    await run(cluster)
    assert jobs(cluster) == []
    assert cluster.child("Deployment")["spec"]["replicas"] == 1


async def test_a_change_made_while_it_sleeps_is_looked_at_when_it_wakes() -> None:
    cluster = await serving()
    cluster.edit(KEY, replicas=0, maxModelLen=256)
    await run(cluster)
    assert cluster.child("Deployment")["spec"]["replicas"] == 0
    assert jobs(cluster) == []
    cluster.edit(KEY, replicas=1)
    await run(cluster)
    assert value(cluster, "--revision") == SHA
    assert cluster.child("Deployment")["spec"]["replicas"] == 0
