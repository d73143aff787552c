"""A conversation, whichever endpoint it came through: checked, rendered and tokenised, with what its answer must look like.

`api/chat` and `api/responses` translate their bodies to a `Conversation`; `turn_of` makes of it the prompt, the grammar of what is
forced (schema, tool call) and the parser of what comes out. In the text threads; raises BadRequest that names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pagemill_server.text.grammar import Grammar
from pagemill_server.text.message import MessageParser
from pagemill_server.text.tools import Tool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    name: str = ""  # of the tool, with "named"
    parallel: bool = True  # more than one call in one answer


@dataclass(frozen=True, slots=True)
class Conversation:
    """What both endpoints mean. Filled by them; `where` is how errors spell the messages' field."""

    messages: Sequence[
        Mapping[str, Any]
    ]  # as chat templates take them: role, content and, where there are any, tool_calls …
    where: str = "messages"  # "input" of /v1/responses
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice("none")
    output: Grammar | None = None  # what the answer's words must match: response_format or structured_outputs
    template_kwargs: Mapping[str, Any] = field(
        default_factory=dict
    )  # enable_thinking and whatever else the template reads
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's turn, ready. `parser` makes one for each choice."""

    prompt: tuple[int, ...]  # token ids
    grammar: str  # compiled; "": anything
    parser: Callable[[], MessageParser] | None  # None: all of the text is words
    shown: frozenset[int]  # special tokens that must come out as text, because the parser reads them
    call_id: Callable[[], str]  # a new id for a tool call
