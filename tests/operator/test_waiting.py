"""Kubernetes' words for a pod that does not start, and ours."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.waiting import creating_trouble, scheduling_trouble, waiting_trouble

CLAIM = {"metadata": {"name": "chat-models"}, "status": {"phase": "Pending"}}
BOUND = {"metadata": {"name": "bound"}, "status": {"phase": "Bound"}}


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        (
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: none",
            "Unschedulable",
            "enough nvidia.com/gpu:",
        ),
        ("0/3 nodes: 2 Insufficient cpu, 1 Insufficient memory.", "Unschedulable", "enough cpu and memory"),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {gpu: true}.", "Unschedulable", "untolerated taint"),
        ("", "Unschedulable", "no node takes the pod"),
        ("pod has unbound immediate PersistentVolumeClaims", "ClaimPending", "claim chat-models is pending"),
        ('persistentvolumeclaim "weights" not found', "ClaimPending", "claim weights does not exist"),
        ("node(s) didn't find available persistent volumes to bind", "ClaimPending", "claim chat-models is pending"),
        ('running PreBind plugin "VolumeBinding": binding volumes: timed out', "ClaimPending", "claim chat-models"),
        ("1 node(s) had volume node affinity conflict", "Unschedulable", "another zone"),
        ("1 node(s) didn't match PersistentVolume's node affinity", "Unschedulable", "another node"),
        ("1 node(s) didn't match Pod's node affinity/selector", "Unschedulable", "pod.nodeSelector"),
        ("2 node(s) were unschedulable, 1 Insufficient memory", "Unschedulable", "enough memory: add one"),
        ("2 node(s) were unschedulable, 1 Insufficient memory", "Unschedulable", "uncordon"),
    ],
)
def test_scheduling(message: str, reason: str, says: str) -> None:
    trouble = scheduling_trouble(message, [CLAIM, BOUND])
    assert trouble.reason == reason
    assert says in trouble.message


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_pulled(reason: str) -> None:
    trouble = waiting_trouble({"reason": reason, "message": 'failed to pull\n "x": not found'})
    assert trouble is not None
    assert trouble.reason == "ImagePullFailure"
    assert trouble.message.endswith('failed to pull "x": not found')


def test_a_back_off_reads_as_the_attempt_before_it() -> None:
    """Or the status would be written at each turn of the loop."""
    cause = 'failed to pull and unpack image "x": not found'
    attempt = waiting_trouble({"reason": "ErrImagePull", "message": cause})
    pause = waiting_trouble(
        {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "x": ErrImagePull: {cause}'}
    )
    assert attempt == pause
    old = waiting_trouble({"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'})
    assert old is not None
    assert '"x"' in old.message


def test_a_missing_secret() -> None:
    trouble = waiting_trouble({"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'})
    assert trouble is not None
    assert (trouble.reason, trouble.message) == (
        "ContainerConfigError",
        'the container can\'t be made: secret "hub" not found',
    )


@pytest.mark.parametrize(
    ("waiting", "events", "reason"),
    [
        ({"reason": "ContainerCreating"}, [], None),
        ({"reason": "ContainerCreating"}, [("FailedMount", "no such volume")], "VolumeFailure"),
        ({"reason": "PodInitializing"}, [("FailedMount", "no such volume")], "VolumeFailure"),
        (
            {"reason": "ContainerCreating"},
            [("FailedMount", 'volume "x" : configmap "x" not found')],
            "ContainerConfigError",
        ),
        (
            {"reason": "ContainerCreating"},
            [("FailedMount", "Unable to attach or mount volumes: timed out"), ("FailedMount", 'secret "x" not found')],
            "ContainerConfigError",
        ),
        ({"reason": "ContainerCreating"}, [("Other", "x"), ("FailedAttachVolume", "Multi-Attach")], "VolumeFailure"),
        ({"reason": "ContainerCreating"}, [("FailedCreatePodSandBox", "no network")], "PodNotStarted"),
        ({"reason": "ContainerCreating"}, [("MissingClusterDNS", "falling back")], None),  # a remark: the pod starts
        ({"reason": "CrashLoopBackOff"}, [("FailedMount", "of long ago")], None),
        ({}, [("FailedMount", "of long ago")], None),
    ],
)
def test_a_container_that_stays_in_creation(
    waiting: dict[str, str], events: list[tuple[str, str]], reason: str | None
) -> None:
    warnings: list[dict[str, Any]] = [{"type": "Warning", "reason": name, "message": text} for name, text in events]
    trouble = creating_trouble(waiting, warnings)
    assert (trouble.reason if trouble else None) == reason
