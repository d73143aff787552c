"""The cluster of one machine with real processes: what a Deployment becomes and what its pods' status says meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from pagemill.failures import FailureReason, parse_termination
from pagemill_operator.cluster.interface import Key, ObjectRef
from pagemill_operator.cluster.local import pod as pod_module
from pagemill_operator.cluster.local.pod_status import conditions_of, is_ready
from tests.operator.cluster.local import manifests
from tests.operator.cluster.local.conftest import KEY, PATIENCE, Machine

FAILURE = '{"reason": "KVCacheTooSmall", "message": "needs 3 GiB", "suggestion": {"maxModelLen": 2048}}\n'


@pytest.fixture
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_module, "BACKOFF_START", 0.02)


async def test_replicas_come_up_and_requests_reach_all_of_them(machine: Machine) -> None:
    async with machine.session.get(machine.url) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert (await response.json())["error"]["type"] == "service_unavailable"
    await machine.deploy(replicas=2)
    await machine.until_rolled_out(2)
    streams = [asyncio.create_task(machine.session.get(f"{machine.url}/stream?n=20&every=0.05")) for _ in range(2)]
    responses = await asyncio.gather(*streams)
    texts = [await response.text() for response in responses]
    assert texts == ["".join(f"1:{number}\n" for number in range(20))] * 2
    assert len({(await machine.get())["pid"] for _ in range(40)}) == 2, "with nothing running, each has its turn"
    assert sorted(line for line in machine.log if "listens" in line) == [
        "tiny-0 | version 1 listens",
        "tiny-1 | version 1 listens",
    ]
    assert {KEY} == set(machine.stirred)


async def test_the_objects_are_a_clusters(machine: Machine) -> None:
    """What the reconcile reads: owners, labels, conditions, container states."""
    await machine.deploy(replicas=1)
    await machine.until_rolled_out(1)
    (pod,) = machine.pods()
    (replica_set,) = await machine.cluster.children(KEY, "ReplicaSet")
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [replica_set["metadata"]["uid"]]
    assert pod["metadata"]["labels"]["pod-template-hash"] == replica_set["metadata"]["labels"]["pod-template-hash"]
    assert {found["type"]: found["status"] for found in conditions_of(pod)} == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    (container,) = pod["status"]["containerStatuses"]
    assert (container["name"], container["restartCount"], container["started"], container["ready"]) == (
        "server",
        0,
        True,
        True,
    )
    assert set(container["state"]) == {"running"}
    assert (await machine.cluster.probe(pod, "/ready")).body == {"ready": True}
    assert (await machine.cluster.probe(pod, "/ready", 9404)).status == 0, "no pod here has a second port"
    assert await machine.cluster.metrics(pod) is not None
    (resource,) = await machine.cluster.resources(KEY.namespace)
    assert resource["metadata"]["name"] == KEY.name
    assert await machine.cluster.resources("elsewhere") == ()
    assert {found["type"]: found["status"] for found in machine.deployment()["status"]["conditions"]} == {
        "Available": "True",
        "Progressing": "True",
    }


async def test_a_crash_loop_backs_off_and_says_why(machine: Machine, tmp_path: Path, quick_backoff: None) -> None:
    note = tmp_path / "note"
    note.write_text(FAILURE)
    seen = list[str]()
    machine.cluster.store.listen(
        lambda change: seen.extend(
            entry["state"]["waiting"]["message"]
            for entry in machine.containers()
            if entry["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
        )
    )
    await machine.deploy("--crash", str(note))
    await machine.until(lambda: any(entry["restartCount"] >= 3 for entry in machine.containers()))
    (container,) = machine.containers()
    ended = container["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    failure = parse_termination(ended["message"])
    assert failure is not None
    assert failure.reason is FailureReason.KV_CACHE_TOO_SMALL
    assert failure.suggestion == {"maxModelLen": 2048}
    assert not any(is_ready(pod) for pod in machine.pods())
    assert seen[0] == "back-off 0s restarting failed container=server"
    note.unlink()  # the cause is gone: the same pod recovers
    await machine.until_rolled_out(1)
    (container,) = machine.containers()
    assert set(container["state"]) == {"running"}
    assert container["lastState"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize(("crashes", "seconds"), [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (5000, 30)])
def test_backoff(crashes: int, seconds: float) -> None:
    assert pod_module.backoff_seconds(crashes) == seconds


async def test_a_killed_server_is_restarted_in_its_pod(machine: Machine, quick_backoff: None) -> None:
    await machine.deploy()
    await machine.until_rolled_out(1)
    first = (await machine.get())["pid"]
    reasons = set[str]()
    machine.cluster.store.listen(
        lambda change: reasons.update(entry["state"].get("waiting", {}).get("reason") for entry in machine.containers())
    )
    os.kill(first, signal.SIGKILL)
    await machine.until(lambda: any(entry["restartCount"] == 1 and entry["ready"] for entry in machine.containers()))
    (container,) = machine.containers()
    ended = container["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")
    assert "message" not in ended
    assert (await machine.get())["pid"] != first
    assert "CrashLoopBackOff" not in reasons, "one end is no loop"


async def test_a_server_that_hangs_is_killed_by_its_liveness_probe(machine: Machine, quick_backoff: None) -> None:
    await machine.deploy()
    await machine.until_rolled_out(1)
    await machine.get("/hang")
    await machine.until(lambda: any(entry["restartCount"] == 1 and entry["ready"] for entry in machine.containers()))
    assert "tiny-0 | liveness probe failed: the container is restarted" in machine.log


async def test_surge_rolls_out_without_a_failed_request(machine: Machine) -> None:
    await machine.deploy(replicas=2, surge=1, unavailable=0)
    await machine.until_rolled_out(2)
    versions, over = list[str](), asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            versions.append((await machine.get())["version"])

    clients = [asyncio.create_task(ask()) for _ in range(3)]
    await machine.deploy("--version", "2", replicas=2, surge=1, unavailable=0)
    await machine.until_rolled_out(2)
    over.set()
    await asyncio.gather(*clients)
    assert {"1", "2"} == set(versions)
    assert (await machine.get())["version"] == "2"


async def test_a_stream_outlives_the_rollout_of_its_replica(machine: Machine) -> None:
    await machine.deploy()
    await machine.until_rolled_out(1)
    response = await machine.session.get(f"{machine.url}/stream?n=30&every=0.05")
    await machine.deploy("--version", "2")
    await machine.until_rolled_out(1)
    assert (await machine.get())["version"] == "2"
    assert await response.text() == "".join(f"1:{number}\n" for number in range(30))


async def test_a_rollout_stops_at_a_replica_that_never_gets_ready(machine: Machine, tmp_path: Path) -> None:
    await machine.deploy(replicas=2)
    await machine.until_rolled_out(2)
    note = tmp_path / "note"
    note.write_text(FAILURE)
    await machine.deploy("--crash", str(note), replicas=2)
    await machine.until(lambda: any(entry["restartCount"] >= 1 for entry in machine.containers()))
    assert sum(is_ready(pod) for pod in machine.pods()) == 1
    assert (await machine.get())["version"] == "1"
    await machine.deploy(replicas=2)  # and back: the first revision is the newest again
    await machine.until_rolled_out(2)
    revisions = {
        found["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: found["spec"]["replicas"]
        for found in await machine.cluster.children(KEY, "ReplicaSet")
    }
    assert revisions == {"2": 0, "3": 2}


async def test_scaling_keeps_the_pods_that_stay(machine: Machine) -> None:
    await machine.deploy(replicas=1)
    await machine.until_rolled_out(1)
    (first,) = machine.pods()
    await machine.deploy(replicas=3)
    await machine.until_rolled_out(3)
    await machine.deploy(replicas=1)
    await machine.until(lambda: len(machine.pods()) == 1)
    assert machine.pods()[0]["metadata"]["uid"] == first["metadata"]["uid"]
    await machine.deploy(replicas=0)
    await machine.until(lambda: not machine.pods())


async def test_a_stubborn_server_is_killed_after_its_grace(machine: Machine) -> None:
    await machine.deploy("--stubborn", grace=1)
    await machine.until_rolled_out(1)
    await machine.get()
    await machine.deploy("--stubborn", grace=1, replicas=0)
    await machine.until(lambda: not machine.pods())


async def test_a_gpu_pod_on_a_machine_without_one_says_so(machine: Machine) -> None:
    await machine.deploy(resources={"limits": {"nvidia.com/gpu": "1"}})
    await machine.until(lambda: any(conditions_of(pod) for pod in machine.pods()))
    (condition,) = conditions_of(machine.pods()[0])
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert "this machine has no CUDA device" in condition["message"]
    await machine.deploy()  # the spec is mended
    await machine.until_rolled_out(1)


async def test_a_missing_secret_is_a_config_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    await machine.deploy(env=[{"name": "HF_TOKEN", "valueFrom": reference}])
    await machine.until(
        lambda: any(
            "waiting" in entry["state"] and entry["state"]["waiting"].get("message") for entry in machine.containers()
        )
    )
    (container,) = machine.containers()
    assert container["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    assert "set HF_TOKEN" in container["state"]["waiting"]["message"]


async def test_a_program_that_is_not_there_is_a_start_error(machine: Machine) -> None:
    manifest = manifests.deployment(owner_uid=machine.uid)
    manifest["spec"]["template"]["spec"]["containers"][0]["command"] = ["no-such-program"]
    await machine.cluster.apply(manifest)
    await machine.until(lambda: any(entry["lastState"] for entry in machine.containers()))
    (container,) = machine.containers()
    ended = container["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "no-such-program" in ended["message"]


@pytest.mark.parametrize("env", [{"name": "A", "value": "a\0b"}, {"name": "A=B", "value": "c"}])
async def test_what_no_process_can_be_given_is_a_start_error(machine: Machine, env: dict[str, str]) -> None:
    """The types refuse a NUL at the door; what comes past them must not make pod after pod without a pause."""
    await machine.cluster.apply(manifests.deployment(owner_uid=machine.uid, env=[env]))
    await machine.until(lambda: any(entry["lastState"] for entry in machine.containers()))
    (container,) = machine.containers()
    assert container["lastState"]["terminated"]["reason"] == "StartError"


async def test_drain_finishes_what_streams_and_leaves_nothing(machine: Machine) -> None:
    await machine.deploy()
    await machine.until_rolled_out(1)
    await machine.get()
    response = await machine.session.get(f"{machine.url}/stream?n=20&every=0.05")
    draining = asyncio.create_task(machine.cluster.drain())
    assert await response.text() == "".join(f"1:{number}\n" for number in range(20))
    await draining
    store = machine.cluster.store
    left = [found for kind in ("LLMDeployment", "Deployment", "ReplicaSet", "Pod") for found in store.all(kind)]
    assert left == []
    with pytest.raises(aiohttp.ClientConnectorError):
        await machine.session.get(machine.url)


async def test_a_deleted_pod_is_replaced(machine: Machine) -> None:
    await machine.deploy()
    await machine.until_rolled_out(1)
    (pod,) = machine.pods()
    metadata = pod["metadata"]
    await machine.cluster.delete(ObjectRef("v1", "Pod", metadata["namespace"], metadata["name"]))
    await machine.until(lambda: metadata["uid"] not in {found["metadata"]["uid"] for found in machine.pods()})
    await machine.until_rolled_out(1)


async def test_a_claim_is_bound_and_a_service_has_the_front_ports_address(machine: Machine) -> None:
    labels = {"labels": {"pagemill.dev/deployment": "tiny"}}
    for kind in ("PersistentVolumeClaim", "Service"):
        metadata = {"name": "tiny", "namespace": "default", **labels}
        await machine.cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {}})
    (claim,) = await machine.cluster.children(KEY, "PersistentVolumeClaim")
    (service,) = await machine.cluster.children(KEY, "Service")
    assert claim["status"]["phase"] == "Bound"
    (entry,) = service["status"]["loadBalancer"]["ingress"]
    assert f"http://{entry['ip']}:{entry['ports'][0]['port']}" == machine.url


async def test_status_patches_merge_and_null_removes(machine: Machine) -> None:
    await machine.cluster.patch_status(KEY, {"a": 1, "b": {"x": 1}})
    await machine.cluster.patch_status(KEY, {"a": None, "c": 2})
    found = await machine.cluster.resource(KEY)
    assert found is not None
    assert found["status"] == {"b": {"x": 1}, "c": 2}
    assert found["metadata"]["generation"] == 1


async def test_what_ends_the_controllers_is_not_hidden(machine: Machine) -> None:
    broken = manifests.deployment(owner_uid=machine.uid)
    del broken["spec"]["template"]
    await machine.cluster.apply(broken)
    with pytest.raises(KeyError, match="template"):
        await asyncio.wait_for(machine.cluster.failure(), 60)


async def test_who_waits_at_a_front_is_known_and_wakes(machine: Machine) -> None:
    sleeping = manifests.resource()
    sleeping["spec"] = {"model": "org/name", "autoscaling": {"minReplicas": 0, "maxReplicas": 1}}
    machine.cluster.put_resource(sleeping)
    assert await machine.cluster.held(KEY) == 0
    machine.stirred.clear()
    asking = asyncio.create_task(machine.session.post(f"{machine.url}/v1/completions", data=b"{}"))
    async with asyncio.timeout(PATIENCE):
        while not machine.stirred:  # noqa: ASYNC110  what is stirred is a plain list
            await asyncio.sleep(0.005)
    assert await machine.cluster.held(KEY) == 1
    await machine.deploy(replicas=1)
    async with await asking as response:
        assert (response.status, (await response.json())["path"]) == (200, "/v1/completions")
    assert await machine.cluster.held(KEY) == 0
    assert await machine.cluster.held(Key("default", "absent")) is None
