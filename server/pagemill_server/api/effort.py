"""What of a template's variables a client may set, and how `reasoning_effort` is said with them. Pure.

Nothing is ignored in silence: what the model's template can't heed is refused. Used by the endpoints that converse.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pagemill_server.errors import BadRequest

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
_SWITCHES = ("enable_thinking", "thinking")  # Qwen's word, and DeepSeek's and Granite's


def template_kwargs(
    variables: Collection[str],
    *,
    thinks: bool,
    given: Mapping[str, Any] | None,
    effort: str | None,
    effort_where: str = "reasoning_effort",
) -> dict[str, Any]:
    """What a template gets beside its own. `variables` are those that it reads; `thinks`: the model marks its reasoning."""
    made = dict(given or {})
    for name in [name for name in made if name not in variables]:
        if name in _SWITCHES and made[name] is False and not thinks:
            del made[name]  # it asks for nothing
            continue
        raise BadRequest(
            f"The model's chat template reads no {name[:100]}.",
            param=f"chat_template_kwargs.{name[:100]}",
            code="unsupported_parameter",
        )
    return made if effort is None else _effort(variables, thinks, effort, effort_where) | made


def _effort(variables: Collection[str], thinks: bool, effort: str, where: str) -> dict[str, Any]:
    """A template that knows thinking only as on or off is told that; one that knows neither does what it always does."""
    if "reasoning_effort" in variables:
        return {"reasoning_effort": effort}
    for switch in _SWITCHES:
        if switch in variables:
            return {switch: effort != "none"}
    always = "medium" if thinks else "none"
    if effort != always:
        raise BadRequest(
            f"{where} can't be {effort}: this model {'always reasons' if thinks else 'does not reason'}; leave it out or send "
            f'"{always}".',
            param=where,
            code="unsupported_value",
        )
    return {}
