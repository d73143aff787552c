"""One pod: its node, the containers that others have put into it, and the order in which what it shows is believed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from pagemill.failures import Failure, FailureReason
from pagemill_operator.pod_state import read_pod
from pagemill_operator.waiting import Trouble
from tests.operator.pod_statuses import end, ended, running, unscheduled, waiting

SPEC = {
    "nodeName": "gpu-1",
    "containers": [
        {
            "name": "server",
            "resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"}},
        }
    ],
}


def trouble(
    status: Mapping[str, Any],
    *events: Mapping[str, Any],
    nodes: tuple[Mapping[str, Any], ...] = (),
    spec: Mapping[str, Any] = SPEC,
) -> Trouble | None:
    pod = {"metadata": {"name": "chat-0"}, "spec": spec, "status": status}
    return read_pod(pod, None, events, (), nodes).trouble


def node(status: str, name: str = "gpu-1") -> dict[str, Any]:
    report = {"type": "Ready", "status": status, "message": "Kubelet stopped posting node status."}
    return {"metadata": {"name": name}, "status": {"conditions": [report]}}


def unready_by_kubernetes() -> dict[str, Any]:
    """What becomes of a pod that serves when its node falls silent: nobody is there to write anything else of it."""
    status = copy.deepcopy(running(True))
    for found in status["conditions"]:
        if found["type"] == "Ready":
            found["status"] = "False"
    return status


def test_a_lost_node_is_told_from_the_node() -> None:
    found = trouble(unready_by_kubernetes(), nodes=(node("True", "other"), node("Unknown")))
    assert found is not None
    assert (found.reason, found.passing) == ("NodeUnreachable", True)
    assert "node gpu-1 does not answer (Kubelet stopped posting node status.)" in found.message


def test_a_replica_that_was_starting_is_lost_with_its_node_as_well() -> None:
    found = trouble(running(False), nodes=(node("Unknown"),))
    assert found is not None
    assert found.reason == "NodeUnreachable"


def test_a_lost_node_is_told_from_the_pod_where_nodes_cannot_be_seen() -> None:
    found = trouble(unready_by_kubernetes())
    assert found is not None
    assert found.reason == "NodeUnreachable"


def test_a_readiness_gate_is_no_lost_node() -> None:
    status = unready_by_kubernetes()
    status["conditions"][1]["reason"] = "ReadinessGatesNotReady"
    assert trouble(status) is None


@pytest.mark.parametrize("status", [running(False), running(True)])
def test_a_node_that_answers_is_no_trouble(status: Mapping[str, Any]) -> None:
    assert trouble(status, nodes=(node("True"),)) is None


@pytest.mark.parametrize(
    ("reason", "told", "says"),
    [
        ("Evicted", "Evicted", "low on memory"),
        ("UnexpectedAdmissionError", "UnexpectedAdmissionError", "low on memory"),
        ("OutOfnvidia.com/gpu", "PodFailed", "OutOfnvidia.com/gpu: low on memory"),
        (None, "PodFailed", "low on memory"),
    ],
)
def test_a_pod_that_ended_for_good(reason: str | None, told: str, says: str) -> None:
    """kserve#1859 and the like: also where the kubelet has left how its container ended."""
    body = {"phase": "Failed", "reason": reason, "message": "low on memory"}
    for status in [body, *([{**ended(137), **body}] if reason else [])]:
        found = trouble(status)
        assert found is not None
        assert (found.reason, found.passing) == (told, True)
        assert says in found.message


def test_an_init_container_that_somebody_put_in_is_told() -> None:
    """kserve#1859: Init:CrashLoopBackOff."""
    looping = {
        "name": "istio-init",
        "ready": False,
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": end(255, "iptables: no")},
    }
    found = trouble({**waiting("PodInitializing"), "initContainerStatuses": [looping]})
    assert found is not None
    assert found.reason == "CrashLoopBackOff"
    assert "container istio-init, which is not ours, ends with exit code 255" in found.message
    assert "iptables: no" in found.message


def test_a_sidecars_image_is_told() -> None:
    status = waiting("PodInitializing")
    pulls = {"name": "proxy", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    found = trouble({**status, "containerStatuses": [pulls, *status["containerStatuses"]]})
    assert found is not None
    assert found.reason == "ImagePullFailure"
    assert "container proxy" in found.message


def test_an_init_container_that_has_done_its_work_is_none() -> None:
    done = {"name": "init", "ready": True, "state": {"terminated": end(0, reason="Completed")}}
    assert trouble({**running(False), "initContainerStatuses": [done]}) is None


def test_what_is_missing_is_said_with_how_much_is_asked_for() -> None:
    found = trouble(unscheduled("0/2 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/gpu."))
    assert found is not None
    assert "enough memory (the pod asks for 4Gi) and nvidia.com/gpu (the pod asks for 2)" in found.message


def test_a_pod_that_a_queue_holds_back() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    gated = {**SPEC, "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    found = trouble({"phase": "Pending", "conditions": [condition]}, spec=gated)
    assert found is not None
    assert found.reason == "SchedulingGated"
    assert "kueue.x-k8s.io/admission" in found.message


def test_the_servers_own_word_goes_before_everything() -> None:
    line = Failure(FailureReason.CUDA_ERROR, "device-side assert").to_line()
    status = waiting("CrashLoopBackOff", restarts=5, last=end(137, line, "OOMKilled"))
    killed = {"reason": "Killing", "message": "Container server failed liveness probe", "lastTimestamp": "2027"}
    found = trouble(status, {**killed, "involvedObject": {"name": "chat-0"}}, nodes=(node("Unknown"),))
    assert found == Trouble("CUDAError", "device-side assert")


def test_the_only_container_is_read_whatever_its_name() -> None:
    """A preflight's is not called server."""
    status = waiting("ImagePullBackOff", "not found")
    status["containerStatuses"][0]["name"] = "preflight"
    found = trouble(status)
    assert found is not None
    assert found.reason == "ImagePullFailure"
    assert "not ours" not in found.message


def test_another_pods_events_are_not_this_ones() -> None:
    other = {"reason": "FailedMount", "message": "no", "involvedObject": {"name": "chat-1"}}
    assert trouble(waiting("ContainerCreating"), other) is None
    own = {**other, "message": "no such volume", "involvedObject": {"name": "chat-0"}}
    assert trouble(waiting("ContainerCreating"), other, own) == Trouble(
        "VolumeFailure", "the pod can't start: no such volume"
    )


@pytest.mark.parametrize(
    ("reason", "restarts", "passing"),
    [
        (FailureReason.ENGINE_FAILED, 0, True),
        (FailureReason.HUB_UNREACHABLE, 1, True),
        (FailureReason.CUDA_ERROR, 2, False),
        (FailureReason.KV_CACHE_TOO_SMALL, 0, False),
    ],
)
def test_what_may_be_over_after_a_restart(reason: FailureReason, restarts: int, passing: bool) -> None:
    found = trouble(running(False, restarts, end(1, Failure(reason, "so it is").to_line())))
    assert found == Trouble(reason.value, "so it is", passing)
