"""The names of the formats that flags can choose from, and no more, so that flags load in milliseconds.

A test holds them to the code.
"""

from __future__ import annotations

TOOL_CALL_PARSERS = ("hermes", "llama3_json", "mistral")
REASONING_PARSERS = ("deepseek_r1", "mistral", "qwen3")
