"""What this release brings alive of the spec, and the words that refuse the rest.

A field that the types allow but nothing acts on yet is never ignored: the deployment says UnsupportedField with the field's path
and what to do, and pods that run are left alone. A feature that arrives deletes its line here. Pure; called by `reconcile` and
the commands.
"""

from __future__ import annotations

from collections.abc import Callable

from pagemill_operator.spec import LLMDeploymentSpec

_LATER = "is not served by this release"
_Rule = tuple[str, Callable[[LLMDeploymentSpec], bool], str]

_RULES: tuple[_Rule, ...] = (
    (
        "engine.quantization",
        lambda s: s.engine.quantization is not None,
        "remove it; a quantized GGUF is loaded as it is",
    ),
    (
        "scheduling.policyConfigMap",
        lambda s: s.scheduling.policy_config_map is not None,
        "remove it and put the class into the image",
    ),
    (
        "autoscaling",
        lambda s: s.autoscaling is not None,
        "remove it and set replicas; /scale takes an HPA's or KEDA's word",
    ),
    (
        "rollout.maxFailures",
        lambda s: s.rollout.max_failures is not None,
        "remove it: a rollout stops at the first failure",
    ),
    ("routing", lambda s: s.routing != "service", "set it to service"),
    ("gateway", lambda s: s.gateway is not None, "remove it and write an HTTPRoute to the Service"),
    ("networkPolicy.enabled", lambda s: s.network_policy.enabled, "remove it and write a NetworkPolicy of your own"),
    ("monitoring.podMonitor", lambda s: s.monitoring.pod_monitor, "remove it and write a PodMonitor of your own"),
)


def unsupported(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """A line for each field that is set and that nothing would act on: its path and what to do."""
    return tuple(f"spec.{path} {_LATER}: {advice}" for path, used, advice in _RULES if used(spec))
