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
        ('persistentvolumeclaim "weights" not found', "ClaimPending", '"weights" not found'),
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
