"""The typed status of an LLMDeployment, for the CRD's schema and for `status`, which fills it.

Nothing here is a live reading: what changes on each look belongs to Prometheus, or the status would be written without end.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class StatusPart(BaseModel):
    """Frozen, closed: a field that the CRD's schema lacks would be pruned, and written again on every pass."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Condition(StatusPart):
    """One answer about the deployment, as Kubernetes' own metav1.Condition."""

    type: str = Field(description="Ready, Progressing, Degraded, MemoryFit, ModelAvailable, Draining or ScalingActive.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(description="One CamelCase word.", pattern="^[A-Za-z][A-Za-z0-9]*$")
    message: str = Field(description="A sentence to act on.")
    observed_generation: int = Field(description="The generation of the spec that this is about.")
    last_transition_time: str = Field(
        description="When the status last flipped.", json_schema_extra={"format": "date-time"}
    )


class Capacity(StatusPart):
    """What one replica holds, as its server measured it."""

    weights_bytes: int = Field(description="Bytes of weights in memory.")
    kv_cache_bytes: int = Field(description="Bytes of the KV cache.")
    kv_blocks: int = Field(description="Blocks of the KV cache.")
    max_concurrent_tokens: int = Field(description="Tokens that fit at once.")
    max_model_len_that_fits: int = Field(description="The longest sequence that fits.")


class Loading(StatusPart):
    """How far the slowest starting replica is."""

    phase: str = Field(description="Starting, Downloading, LoadingWeights or Warmup.")
    percent: int = Field(description="In steps of ten.", ge=0, le=100)
    time: str = Field(
        description="When this was written: at a change of phase, else every 30 s at most.",
        json_schema_extra={"format": "date-time"},
    )


class Signal(StatusPart):
    """One signal at the time of a scaling decision."""

    name: str = Field(description="Its name in spec.autoscaling.targets.")
    value: str = Field(description="What was measured, as text.")
    desired: int = Field(description="Replicas that it asks for.")


class AutoscalingStatus(StatusPart):
    """The last scaling decision; written with a decision only."""

    desired: int = Field(description="Replicas decided on; in mode Recommend, recommended.")
    decision: str = Field(description="Up, Down or Hold.")
    reason: str = Field(description="The rule that decided, and why.")
    signals: tuple[Signal, ...] = Field((), description="What it was decided on.")
    last_scale_time: str | None = Field(
        None, description="When replicas last changed.", json_schema_extra={"format": "date-time"}
    )
    decider: str = Field(description="Who decides: Operator, KEDA or External.")
    since: str = Field(description="Since when it does.", json_schema_extra={"format": "date-time"})


class RolloutStatus(StatusPart):
    """What a change of the spec has yet to reach."""

    pending_fields: tuple[str, ...] = Field((), description="Fields whose change has not reached every pod.")
    change_class: str | None = Field(None, description="hot, operator or restart.", alias="class")


class Status(StatusPart):
    """What the operator observed."""

    observed_generation: int = Field(description="The generation of the spec that this status is about.")
    replicas: int = Field(0, description="Pods that exist.")
    ready_replicas: int = Field(0, description="Pods of the newest generation that answer.")
    ready: str = Field("0/0", description="Ready over wanted replicas.")
    selector: str = Field("", description="Label selector of the pods, for whoever scales through /scale.")
    url: str | None = Field(None, description="Where clients find it: base URL for an OpenAI client.")
    image: str | None = Field(None, description="The server's image.")
    model_revision: str | None = Field(None, description="Revision of the model.")
    capacity: Capacity | None = Field(None, description="What one replica holds.")
    loading: Loading | None = Field(None, description="How far a start is.")
    autoscaling: AutoscalingStatus | None = Field(default=None, description="The last scaling decision.")
    rollout: RolloutStatus | None = Field(default=None, description="What a change has yet to reach.")
    conditions: tuple[Condition, ...] = Field(
        (),
        description="Ready, Progressing, Degraded and what explains them.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
