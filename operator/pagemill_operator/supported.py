"""What this release brings alive of the spec, and the words that refuse the rest.

A field that the types allow but nothing acts on yet is never ignored: the deployment says UnsupportedField with the field's path
and what to do, and pods that run are left alone. A feature that arrives deletes its line here. Pure; called by `reconcile` and
the commands.
"""

from __future__ import annotations

from collections.abc import Callable

from pagemill.weight_storage import QUANTIZATIONS
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.way import needs_gateway

_LATER = "is not served by this release"
_Rule = tuple[str, Callable[[LLMDeploymentSpec], bool], str]

_RULES: tuple[_Rule, ...] = (
    (
        "engine.quantization",
        lambda s: s.engine.quantization not in (None, *QUANTIZATIONS),
        f"set one of {', '.join(QUANTIZATIONS)}, or remove it; a quantized GGUF is loaded as it is",
    ),
    (
        "engine.quantization",
        lambda s: s.engine.quantization == "int8" and s.accelerator == "gpu",
        "remove it, or set accelerator to cpu, where int8 is; a quantized GGUF is loaded as it is",
    ),
    (
        "gateway.endpointPicker",
        lambda s: s.gateway is not None and s.gateway.endpoint_picker is not None and needs_gateway(s),
        "a picker's requests pass by the namespace's gateway; remove it, or set routing to service and minReplicas to 1",
    ),
)


def unsupported(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """A line for each field that is set and that nothing would act on: its path and what to do."""
    return tuple(f"spec.{path} {_LATER}: {advice}" for path, used, advice in _RULES if used(spec))
