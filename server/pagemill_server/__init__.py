"""Pagemill's engine and its OpenAI-compatible server. `from pagemill_server import LLM, SamplingParams` runs the engine in Python.

`LLM` is imported when it is first asked for: it brings torch, and a server that refuses a model must not wait for that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pagemill_server.engine.request import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from pagemill_server.llm import LLM

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        return importlib.import_module("pagemill_server.llm").LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
