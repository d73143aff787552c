"""Why pods were never made: the API server refused them, in words that the Deployment's ReplicaFailure quotes.

Pure. Called by `fleet`.
"""

from __future__ import annotations

import re

from pagemill_operator.waiting import Trouble

_LIMIT_RANGE = re.compile(r"(maximum|minimum|max limit to request ratio) .*per (Container|Pod)")
# Words of the API server's admission plugins, and what they mean to whoever wrote the spec.
_REFUSALS = (
    (
        re.compile(r"exceeded quota"),
        "QuotaExceeded",
        "the namespace's quota has no room for the pod: raise it, free some, or ask for less",
    ),
    (
        re.compile(r"failed quota"),
        "QuotaExceeded",
        "the namespace's quota wants every pod to say what it needs: set resources.requests and resources.limits",
    ),
    (
        re.compile(r"violates PodSecurity"),
        "PodSecurityViolation",
        "the namespace's Pod Security level forbids what pod.* adds: take it out, or label the namespace otherwise",
    ),
    (_LIMIT_RANGE, "AdmissionDenied", "the namespace's LimitRange forbids it: change resources"),
    (
        re.compile(r"failed calling webhook"),
        "AdmissionDenied",
        "an admission webhook that must be asked does not answer: see to it, or to its failurePolicy",
    ),
    (re.compile(r"admission webhook|ValidatingAdmissionPolicy"), "AdmissionDenied", "an admission rule denies it"),
)


def refused_trouble(message: str) -> Trouble:
    """`message`: of the Deployment's ReplicaFailure."""
    said = " ".join(message.split())
    for words, reason, advice in _REFUSALS:
        if words.search(said):
            return Trouble(reason, f"pods can't be made: {advice}. The cluster says: {said}")
    return Trouble("ReplicaFailure", f"pods can't be made, the cluster refuses them: {said}")
