"""A spec's hot settings: what a running engine takes over without a restart, as the ConfigMap and /config have them.

Pure. Used by `render` (the ConfigMap), `serve_flags` (its file) and `hot` (running replicas).
"""

from __future__ import annotations

import json
from typing import Any

from pagemill_operator.spec import LLMDeploymentSpec

SETTINGS_FILE = "settings.json"  # the ConfigMap's key
FIELDS = {  # of the spec, by the setting's name in `pagemill.hot_settings`
    "policy": "schedulingPolicy",
    "aging_seconds": "scheduling.agingSeconds",
    "ttft_ms": "scheduling.ttftMs",
    "weights": "scheduling.weights",
    "max_num_queued_reqs": "scheduling.maxQueuedRequests",
    "max_num_queued_tokens": "scheduling.maxQueuedTokens",
}
# What the server takes where nobody says otherwise: a field that is removed from the spec has to go back to something.
DEFAULTS: dict[str, Any] = {"aging_seconds": 30.0, "ttft_ms": 1000.0, "weights": {}}


def settings_of(spec: LLMDeploymentSpec) -> dict[str, Any]:
    """All of them, by `pagemill.hot_settings`' names."""
    scheduling = spec.scheduling
    given = {
        "policy": spec.scheduling_policy,
        "aging_seconds": scheduling.aging_seconds,
        "ttft_ms": scheduling.ttft_ms,
        "weights": scheduling.weights,
        "max_num_queued_reqs": scheduling.max_queued_requests,
        "max_num_queued_tokens": scheduling.max_queued_tokens,
    }
    return {name: DEFAULTS.get(name) if value is None else value for name, value in given.items()}


def config_map_name(name: str) -> str:
    """The ConfigMap of the deployment `name`."""
    return f"{name}-settings"


def config_map_data(spec: LLMDeploymentSpec) -> dict[str, str]:
    """Its `data`: the same text for the same settings."""
    return {SETTINGS_FILE: json.dumps(settings_of(spec), sort_keys=True)}
