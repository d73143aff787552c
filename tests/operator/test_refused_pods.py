"""Pods that were never made, in the API server's words (recorded from Kubernetes 1.36), and ours."""

from __future__ import annotations

import pytest

from pagemill_operator.refused_pods import refused_trouble


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        (
            'pods "chat-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1',
            "QuotaExceeded",
            "has no room",
        ),
        (
            'pods "chat-1" is forbidden: failed quota: memory: must specify limits.memory for: server',
            "QuotaExceeded",
            "set resources.requests and resources.limits",
        ),
        (
            'pods "chat-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            "PodSecurityViolation",
            "Pod Security level",
        ),
        (
            'pods "chat-1" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi',
            "AdmissionDenied",
            "LimitRange",
        ),
        ('admission webhook "policy.example" denied the request: no', "AdmissionDenied", "rule denies it"),
        (
            "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            "AdmissionDenied",
            "rule denies it",
        ),
        (
            'Internal error occurred: failed calling webhook "policy.example": connection refused',
            "AdmissionDenied",
            "does not answer",
        ),
        ('error looking up service account team/x: serviceaccount "x" not found', "ReplicaFailure", "refuses them"),
    ],
)
def test_a_refusal_is_typed_and_quoted(message: str, reason: str, says: str) -> None:
    trouble = refused_trouble(message.replace(" ", "\n ", 1))
    assert trouble.reason == reason
    assert says in trouble.message
    assert trouble.message.endswith(message)
