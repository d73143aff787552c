"""Reasoning that a model marks in its text, told apart from the answer: `<think>…</think>` in its variants. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning."""

    name: str  # as --reasoning-parser spells it
    begin: str  # the marker before it
    end: str  # the marker after it
