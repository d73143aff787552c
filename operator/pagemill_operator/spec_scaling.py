"""The spec's `autoscaling`: bounds, who decides, on which signals, how fast."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pagemill_operator.fields import Group, ObjectName, Text, group, operator

KEDA_LOOKS_BACK = 3600  # seconds: no HPA looks back further


class TokenSecret(Group):
    """One key of a Secret in the same namespace."""

    name: ObjectName = operator("Name of the Secret.", ...)
    key: str = operator("Key in the Secret.", "token", pattern=r"^[-._A-Za-z0-9]+$", max_length=253)


class Prometheus(Group):
    """Where signals are read; left out, the operator scrapes the pods itself."""

    url: Text = operator("Base URL of Prometheus.", ...)
    bearer_token_secret_ref: TokenSecret | None = Field(None, description="A bearer token to ask it with.")


class Targets(Group):
    """What one replica should carry; the largest ask of all signals decides."""

    kv_cache_usage: float = operator("Used fraction of the KV cache.", 0.8, gt=0, le=1)
    waiting_requests: float = operator("Requests that wait, a replica.", 2.0, gt=0)
    running_ratio: float = operator("Running sequences over what a step may hold.", 0.9, gt=0, le=1)
    ttft_seconds: float | None = operator("Seconds to the first token.", gt=0)
    preemptions_per_second: float | None = operator("Preemptions a second, a replica.", gt=0)


class ScaleUp(Group):
    """How fast replicas are added."""

    pods_per_minute: int | None = operator("Replicas added in a minute; left out, no bound.", ge=1)


class ScaleDown(Group):
    """How slowly replicas are removed."""

    stabilization_seconds: int = operator("Seconds for which no signal may have asked for more.", 300, ge=0, le=86400)
    pods_per_minute: int | None = operator("Replicas removed in a minute; left out, no bound.", ge=1)


class Autoscaling(Group):
    """Replicas that follow the load."""

    min_replicas: int = operator("The fewest replicas; 0 lets it sleep.", 1, ge=0)
    max_replicas: int = operator("The most replicas.", ..., ge=1)
    mode: Literal["Apply", "Recommend"] = operator("Recommend only says in status what it would do.", "Apply")
    engine: Literal["Operator", "KEDA", "External"] = operator("Who decides.", "Operator")
    prometheus: Prometheus | None = Field(None, description="Where signals are read.")
    targets: Targets = group(Targets, "What one replica should carry.")
    scale_up: ScaleUp = group(ScaleUp, "How fast replicas are added.")
    scale_down: ScaleDown = group(ScaleDown, "How slowly replicas are removed.")
    wake_timeout_seconds: int = operator("Seconds that a request waits for a sleeping model.", 300, ge=1, le=3600)

    @model_validator(mode="after")
    def _bounds(self) -> Autoscaling:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is above maxReplicas {self.max_replicas}")
        return self

    @model_validator(mode="after")
    def _keda(self) -> Autoscaling:
        if self.engine == "KEDA" and self.prometheus is None:
            raise ValueError("prometheus.url is needed with engine KEDA: it asks nobody else")
        if self.engine == "KEDA" and self.scale_down.stabilization_seconds > KEDA_LOOKS_BACK:
            raise ValueError(f"scaleDown.stabilizationSeconds is at most {KEDA_LOOKS_BACK} with engine KEDA")
        return self
