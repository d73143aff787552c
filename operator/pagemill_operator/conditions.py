"""The conditions of an LLMDeployment, each an answer with a reason and a sentence to act on.

Pure: (a look, the former conditions) → findings; `stamped` puts in generation and time, which only moves on a flip. The reasons are
explained in docs/status.md and docs/runbook.md. Called by `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pagemill.failures import FailureReason
from pagemill.memory_fit import WARN_UTILIZATION
from pagemill_operator.fleet import Fleet
from pagemill_operator.look import SCALING, Look
from pagemill_operator.pod_state import DRAINING, advised
from pagemill_operator.status_fields import Capacity, Condition
from pagemill_operator.waiting import Trouble

Answer = Literal["True", "False", "Unknown"]

_MEMORY = frozenset(
    (FailureReason.KV_CACHE_TOO_SMALL, FailureReason.OUT_OF_MEMORY, FailureReason.CUDA_OUT_OF_MEMORY),
)
_MODEL = frozenset(
    (
        FailureReason.MODEL_NOT_FOUND,
        FailureReason.GATED_MODEL,
        FailureReason.MODEL_TRUNCATED,
        FailureReason.MODEL_INVALID,
        FailureReason.CHECKSUM_MISMATCH,
        FailureReason.UNSAFE_MODEL_FORMAT,
        FailureReason.UNSUPPORTED_ARCHITECTURE,
        FailureReason.UNSUPPORTED_TOKENIZER,
        FailureReason.HUB_UNREACHABLE,
    )
)
_LONGEST = 4096  # characters of a message; a status is read by people, and etcd holds all of them
_SERVING = "Serving"
_FOUND = ("LoadingWeights", "Warmup", _SERVING, DRAINING)  # phases in which the server has the model's files


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition before it is stamped."""

    type: str
    answer: Answer
    reason: str
    message: str


def findings(look: Look) -> Iterator[Finding]:
    """All conditions, in the order in which they are shown."""
    yield _ready(look)
    yield _progressing(look)
    yield _degraded(look)
    yield _memory_fit(look)
    yield _model_available(look)
    yield _draining(look.fleet)


def _ready(look: Look) -> Finding:
    fleet, wanted = look.fleet, look.fleet.wanted.replicas
    answering = f"{fleet.ready} of {wanted} replicas answer"
    if former := sum(pod.ready for pod in fleet.older):
        answering += f", and {former} of the former spec"
    if (failed := look.rollout_failed) is not None:
        return Finding("Ready", "False", "RolloutFailed", f"{failed}; {fleet.ready} of {wanted} of the newest answer")
    if (trouble := look.trouble) is not None:
        return Finding("Ready", "False", trouble.reason, _with(trouble.message, answering if wanted else ""))
    if not wanted:
        advice = "the next request wakes it" if look.asleep else "raise replicas, or end suspend, to serve"
        return Finding("Ready", "True", "ScaledToZero", f"no replica is wanted: {advice}")
    if look.before.passed and look.serves:
        return Finding("Ready", "True", "Serving", answering)
    if look.before.passed and look.grows:
        return Finding("Ready", "True", SCALING, f"{answering}, the others are on their way")
    reason, message = _on_its_way(look)
    return Finding("Ready", "False", reason, _with(message, answering))


def _progressing(look: Look) -> Finding:
    fleet, trouble = look.fleet, look.trouble
    if (failed := look.rollout_failed) is not None:
        return Finding("Progressing", "False", "RolloutFailed", failed)
    if trouble is not None and trouble.passing:
        return Finding("Progressing", "True", trouble.reason, "Kubernetes starts it again, or another in its place")
    if trouble is not None and not look.rollout_goes_on:
        return Finding("Progressing", "False", trouble.reason, "it does not get on by itself: see Degraded")
    if not fleet.wanted.replicas:
        if fleet.newest or fleet.older or fleet.leaving:
            return Finding("Progressing", "True", "ScalingDown", "the last replicas finish what they run")
        return Finding("Progressing", "False", "ScaledToZero", "no replica is left")
    if fleet.serves and look.before.passed and not fleet.older and len(fleet.newest) == fleet.wanted.replicas:
        return Finding("Progressing", "False", "Settled", "all replicas are as wanted")
    return Finding("Progressing", "True", *_on_its_way(look))


def _on_its_way(look: Look) -> tuple[str, str]:
    """What is going on while nothing is wrong and not everything is done."""
    fleet = look.fleet
    if not look.before.passed:
        return "Preflight", look.before.running or "the model is looked at before its replicas start"
    if fleet.older:
        return "RollingOut", f"{len(fleet.older)} replicas of the former spec are still to be replaced"
    if not fleet.exists or (not fleet.settled and not fleet.newest):
        return "Creating", "the replicas are being made"
    if fleet.crowded is not None:
        return (
            "WaitingForPlace",
            f"{len(fleet.leaving)} replicas finish what they run, then there is room ({fleet.crowded})",
        )
    phases = {pod.phase for pod in fleet.starting if pod.phase not in (None, DRAINING)}
    if loading := {phase for phase in phases if phase is not None and phase != _SERVING}:
        return "Loading", f"the model is being loaded ({', '.join(sorted(loading))})"
    before = look.said.get("Progressing", {})
    if look.silent and before.get("reason") == "Loading":
        return "Loading", str(before["message"])
    if phases:
        return "Starting", "the model is loaded; the next readiness probe will say so"
    if len(fleet.newest) > fleet.wanted.replicas:
        return "ScalingDown", f"{len(fleet.newest) - fleet.wanted.replicas} replicas are to go"
    if not fleet.settled:
        return "Creating", "the Deployment's controller takes up what has changed"
    if silent := sum(pod.started and not pod.answered for pod in fleet.starting):
        return (
            "Starting",
            f"{silent} replicas have started and do not answer /ready: they are too busy, or the liveness probe will end them",
        )
    return "Starting", "the containers are being started"


def _degraded(look: Look) -> Finding:
    """The first of what is wrong, and all of it in the message."""
    wrong = [trouble for trouble in (look.trouble, *look.beside) if trouble is not None]
    if not wrong:
        return Finding("Degraded", "False", "AsWanted", "nothing is in the way")
    return Finding("Degraded", "True", wrong[0].reason, "; ".join(trouble.message for trouble in wrong))


def _memory_fit(look: Look) -> Finding:
    if trouble := _of(look, _MEMORY):
        return Finding("MemoryFit", "False", trouble.reason, trouble.message)
    killed = next((pod.trouble for pod in look.fleet.newest if pod.trouble and pod.trouble.reason == "OOMKilled"), None)
    if killed is not None:
        return Finding("MemoryFit", "False", killed.reason, killed.message)
    if look.capacity is not None:
        return Finding("MemoryFit", "True", "Fits", _holds(look.capacity, "holds") + _warning(look.utilization))
    if look.before.fit == "Fits" and look.before.capacity is not None:
        capacity = Capacity.model_validate(look.before.capacity)
        return Finding("MemoryFit", "True", "Fits", _holds(capacity, "will hold") + _warning(look.utilization))
    if look.before.fit == "Unknown":
        unknown = "nobody says how much memory the GPU has: set gpu.memoryGiB, or label the nodes nvidia.com/gpu.memory"
        return Finding("MemoryFit", "Unknown", "NotKnown", f"{unknown}; else known when a replica has loaded the model")
    return Finding("MemoryFit", "Unknown", "NotMeasured", "known when a replica has loaded the model")


def _holds(capacity: Capacity, verb: str) -> str:
    if not capacity.kv_blocks:  # an encoder
        return f"a replica {verb} the model; the longest text that fits has {capacity.max_model_len_that_fits} tokens"
    return (
        f"a replica {verb} {capacity.max_concurrent_tokens} tokens at once in {capacity.kv_blocks} blocks; "
        f"the longest sequence that fits has {capacity.max_model_len_that_fits}"
    )


def _warning(utilization: float | None) -> str:
    if utilization is None or utilization <= WARN_UTILIZATION:
        return ""
    return (
        f". Warning: gpuMemoryUtilization {utilization:g} is above {WARN_UTILIZATION}: "
        "little is left for what else uses the GPU, expect CUDAOutOfMemory"
    )


def _model_available(look: Look) -> Finding:
    if trouble := _of(look, _MODEL):
        return Finding("ModelAvailable", "False", trouble.reason, trouble.message)
    if any(pod.ready or pod.phase in _FOUND for pod in look.fleet.newest):
        return Finding("ModelAvailable", "True", "Found", "the server has the model's files")
    before = look.said.get("ModelAvailable", {})
    if look.silent and before.get("status") == "True":
        return Finding("ModelAvailable", "True", str(before["reason"]), str(before["message"]))
    if look.before.passed and (look.before.revision or look.before.fit):
        which = f", revision {look.before.revision}" if look.before.revision else ""
        return Finding("ModelAvailable", "True", "Found", f"the preflight has found the model{which}")
    return Finding("ModelAvailable", "Unknown", "NotLookedYet", "known when somebody has looked for the model")


def _draining(fleet: Fleet) -> Finding:
    if fleet.overdue:
        names = ", ".join(fleet.overdue)
        message = f"{names} should have ended by now: see whether the node is there, else delete with --force"
        return Finding("Draining", "True", "ReplicasOverdue", message)
    if leave := len(fleet.leaving) + sum(pod.draining for pod in fleet.newest):
        message = f"{leave} replicas finish what they run, then go"
        return Finding("Draining", "True", "ReplicasLeave", message)
    return Finding("Draining", "False", "NobodyLeaves", "no replica is on its way out")


def _of(look: Look, reasons: frozenset[FailureReason]) -> Trouble | None:
    """What the preflight, or a replica in its last line, says about the model or its memory."""
    trouble = look.before.trouble
    if trouble is not None and trouble.reason in {reason.value for reason in reasons}:
        return trouble
    failures = (pod.failure for pod in look.fleet.newest)
    found = next((failure for failure in failures if failure is not None and failure.reason in reasons), None)
    return None if found is None else Trouble(found.reason.value, advised(found))


def _with(message: str, more: str) -> str:
    return "; ".join(part for part in (message, more) if part)


def _line(message: str) -> str:
    """One line that the API server takes and gives back as it is: webhooks, kubelets and models write what they like."""
    said = " ".join(message.encode("utf-8", "backslashreplace").decode("utf-8").split())
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


def stamp(now: datetime) -> str:
    """As Kubernetes writes a time: UTC, whole seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def stamped(
    found: Iterable[Finding], previous: Iterable[Mapping[str, Any]], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """With generation and time; the time of a condition whose status has not flipped stays."""
    before = {condition["type"]: condition for condition in previous}
    time = stamp(now)

    def since(finding: Finding) -> str:
        old = before.get(finding.type)
        return str(old["lastTransitionTime"]) if old is not None and old["status"] == finding.answer else time

    return tuple(
        Condition(
            type=finding.type,
            status=finding.answer,
            reason=finding.reason,
            message=_line(finding.message),
            observed_generation=generation,
            last_transition_time=since(finding),
        )
        for finding in found
    )
