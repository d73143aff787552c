"""The conditions of an LLMDeployment, each an answer with a reason and a sentence to act on.

Pure: (fleet, refusal, spec's utilization, capacity) → findings; `stamped` puts in generation and time, which only moves on a flip.
Called by `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pagemill.failures import Failure, FailureReason
from pagemill.memory_fit import WARN_UTILIZATION
from pagemill_operator.fleet import Fleet
from pagemill_operator.pod_state import RESTARTS
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
_SERVING = "Serving"
_FOUND = ("LoadingWeights", "Warmup", _SERVING, "Draining")  # phases in which the server has the model's files


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition before it is stamped."""

    type: str
    answer: Answer
    reason: str
    message: str


def findings(
    fleet: Fleet, refusal: Trouble | None, utilization: float | None, capacity: Capacity | None
) -> Iterator[Finding]:
    """`refusal`: why the spec, or a write that it asks for, was not accepted. `utilization` is None where it can't be read."""
    trouble = refusal or fleet.trouble
    yield _ready(fleet, trouble)
    yield _progressing(fleet, trouble)
    if trouble is not None:
        yield Finding("Degraded", "True", trouble.reason, trouble.message)
    else:
        yield Finding("Degraded", "False", "AsWanted", "nothing is in the way")
    yield _memory_fit(fleet, utilization, capacity)
    yield _model_available(fleet)
    yield _draining(fleet)


def _ready(fleet: Fleet, trouble: Trouble | None) -> Finding:
    wanted = fleet.wanted.replicas
    answering = f"{fleet.ready} of {wanted} replicas answer"
    if former := sum(pod.ready for pod in fleet.older):
        answering += f", and {former} of the former spec"
    if trouble is not None:
        return Finding("Ready", "False", trouble.reason, _with(trouble.message, answering if wanted else ""))
    if not wanted:
        return Finding(
            "Ready", "True", "ScaledToZero", "no replica is wanted: raise replicas, or end suspend, to serve"
        )
    if fleet.serves:
        return Finding("Ready", "True", "Serving", answering)
    reason, message = _on_its_way(fleet)
    return Finding("Ready", "False", reason, _with(message, answering))


def _progressing(fleet: Fleet, trouble: Trouble | None) -> Finding:
    if trouble is not None and trouble.reason == RESTARTS:
        return Finding("Progressing", "True", trouble.reason, "the server that ended is being started again")
    if trouble is not None:
        return Finding("Progressing", "False", trouble.reason, "it does not get on by itself: see Degraded")
    if not fleet.wanted.replicas:
        if fleet.newest or fleet.older or fleet.leaving:
            return Finding("Progressing", "True", "ScalingDown", "the last replicas finish what they run")
        return Finding("Progressing", "False", "ScaledToZero", "no replica is left")
    if fleet.serves and not fleet.older and len(fleet.newest) == fleet.wanted.replicas:
        return Finding("Progressing", "False", "Settled", "all replicas are as wanted")
    return Finding("Progressing", "True", *_on_its_way(fleet))


def _on_its_way(fleet: Fleet) -> tuple[str, str]:
    """What is going on while nothing is wrong and not everything is done."""
    if fleet.older:
        return "RollingOut", f"{len(fleet.older)} replicas of the former spec are still to be replaced"
    if not fleet.exists or not fleet.settled:
        return "Creating", "the replicas are being made"
    if fleet.crowded is not None:
        return (
            "WaitingForPlace",
            f"{len(fleet.leaving)} replicas finish what they run, then there is room ({fleet.crowded})",
        )
    phases = {pod.phase for pod in fleet.starting if pod.phase is not None}
    if loading := phases - {_SERVING}:
        return "Loading", f"the model is being loaded ({', '.join(sorted(loading))})"
    if phases:
        return "Starting", "the model is loaded; the next readiness probe will say so"
    if len(fleet.newest) > fleet.wanted.replicas:
        return "ScalingDown", f"{len(fleet.newest) - fleet.wanted.replicas} replicas are to go"
    return "Starting", "the containers are being started"


def _memory_fit(fleet: Fleet, utilization: float | None, capacity: Capacity | None) -> Finding:
    if failure := _failure(fleet, _MEMORY):
        return Finding("MemoryFit", "False", failure.reason.value, _advised(failure))
    killed = next((pod.trouble for pod in fleet.newest if pod.trouble and pod.trouble.reason == "OOMKilled"), None)
    if killed is not None:
        return Finding("MemoryFit", "False", killed.reason, killed.message)
    if capacity is None:
        return Finding("MemoryFit", "Unknown", "NotMeasured", "known when a replica has loaded the model")
    message = (
        f"a replica holds {capacity.max_concurrent_tokens} tokens at once in {capacity.kv_blocks} blocks; "
        f"the longest sequence that fits has {capacity.max_model_len_that_fits}"
    )
    if utilization is not None and utilization > WARN_UTILIZATION:
        message += (
            f". Warning: gpuMemoryUtilization {utilization:g} is above {WARN_UTILIZATION}: "
            "little is left for what else uses the GPU, expect CUDAOutOfMemory"
        )
    return Finding("MemoryFit", "True", "Fits", message)


def _model_available(fleet: Fleet) -> Finding:
    if failure := _failure(fleet, _MODEL):
        return Finding("ModelAvailable", "False", failure.reason.value, _advised(failure))
    if any(pod.ready or pod.phase in _FOUND for pod in fleet.newest):
        return Finding("ModelAvailable", "True", "Found", "the server has the model's files")
    return Finding("ModelAvailable", "Unknown", "NotLookedYet", "known when a replica has looked for the model")


def _draining(fleet: Fleet) -> Finding:
    if fleet.leaving:
        message = f"{len(fleet.leaving)} replicas finish what they run, then go"
        return Finding("Draining", "True", "ReplicasLeave", message)
    return Finding("Draining", "False", "NobodyLeaves", "no replica is on its way out")


def _failure(fleet: Fleet, reasons: frozenset[FailureReason]) -> Failure | None:
    return next(
        (pod.failure for pod in fleet.newest if pod.failure is not None and pod.failure.reason in reasons), None
    )


def _advised(failure: Failure) -> str:
    """The server's sentence, with those suggested values that it does not name itself."""
    values = [f"{name}: {value}" for name, value in failure.suggestion.items() if str(value) not in failure.message]
    return _with(failure.message, f"would work: {' or '.join(values)}" if values else "")


def _with(message: str, more: str) -> str:
    return "; ".join(part for part in (message, more) if part)


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
            message=finding.message,
            observed_generation=generation,
            last_transition_time=since(finding),
        )
        for finding in found
    )
