"""Which formats a model was taught, by its chat template's source: `auto` of --tool-call-parser and --reasoning-parser. Pure.

A template shows calls of earlier turns to the model as the model is to write them, and so gives the format away.
"""

from __future__ import annotations

from pagemill_server.text.reasoning import REASONING_FORMATS, ReasoningFormat
from pagemill_server.text.tool_formats import NEW_MISTRAL, TOOL_FORMATS
from pagemill_server.text.tools import ToolFormat

# Formats that look like ours and aren't: Qwen3-Coder's and GLM's XML within <tool_call>, Llama 4's Python.
_OTHERS = ("<function=", "<arg_key>", "<|python_start|>")


def tool_format_of(source: str, uses_tools: bool) -> ToolFormat | None:
    """None: a format that no parser here reads. A template that ignores tools gets them in Hermes' words (`tool_messages`)."""
    if not uses_tools:
        return TOOL_FORMATS["hermes"]
    if any(mark in source for mark in _OTHERS):
        return None
    if "[TOOL_CALLS]" in source or "[AVAILABLE_TOOLS]" in source:
        return NEW_MISTRAL if "[ARGS]" in source else TOOL_FORMATS["mistral"]
    if "<tool_call>" in source:
        return TOOL_FORMATS["hermes"]
    if "<|python_tag|>" in source or ("ipython" in source and '"parameters"' in source):
        return TOOL_FORMATS["llama3_json"]
    return None


def reasoning_of(source: str) -> ReasoningFormat | None:
    """None: nothing says that the model marks any.

    Where in doubt it is `qwen3`, which takes for reasoning only what is marked; `deepseek_r1` takes all that has no marker.
    """
    if "[THINK]" in source:
        return REASONING_FORMATS["mistral"]
    if "</think>" not in source and "<think>" not in source:
        return None
    return REASONING_FORMATS["deepseek_r1" if "<\N{FULLWIDTH VERTICAL LINE}Assistant" in source else "qwen3"]
