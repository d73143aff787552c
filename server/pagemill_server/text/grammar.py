"""What generated text must look like: grammars that are put together from parts, and their compiler, which is llguidance.

A `Grammar` is a value; `compile` turns it into the text that crosses to the engine in `SamplingParams.grammar`, or refuses it. The
parts know nothing of tokens. Used by `api/structured`, by `text/tool_formats` and, for masks, by `model/grammar_masks`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grammar:
    """llguidance grammars by name: each part is (name, llguidance grammar as a JSON-able value); the first is where it starts."""

    parts: tuple[tuple[str, object], ...]
