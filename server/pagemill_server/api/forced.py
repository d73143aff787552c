"""The grammar of an answer that isn't free: a tool call that must come, words of a given form, thoughts before. Pure.

Used by `api/conversation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pagemill_server.text.grammar import Grammar, literal, one_of, regex, sequence, text_until
from pagemill_server.text.reasoning import ReasoningFormat, Stand
from pagemill_server.text.tools import Tool, ToolFormat

if TYPE_CHECKING:
    from pagemill_server.api.conversation import ToolChoice

_NEW_LINES = "[\\r\\n]{0,4}"  # after the thoughts, as templates write them


def forced_grammar(
    form: ToolFormat | None, tools: Sequence[Tool], choice: ToolChoice, output: Grammar | None
) -> Grammar | None:
    """None: the model writes what it likes. `tools` are those that it is shown.

    Where a call must come, the form of words asks for nothing; where one may come, so may words of that form.
    """
    if form is None or not tools:
        return output
    if choice.mode in ("required", "named"):
        wanted = [tool for tool in tools if choice.mode == "required" or tool.name == choice.name]
        return form.calls(wanted, parallel=choice.parallel)
    if output is not None:
        return one_of(form.calls(tools, parallel=choice.parallel), output)
    if any(tool.strict for tool in tools):
        held = [tool if tool.strict else replace(tool, parameters={}) for tool in tools]
        return form.words_or_calls(held, parallel=choice.parallel)
    return None


def after_thoughts(answer: Grammar, reasoning: ReasoningFormat, stand: Stand) -> Grammar:
    """The answer may only come once the model has thought, if it has begun to, or would begin."""
    thoughts = sequence(text_until(reasoning.end), regex(_NEW_LINES), answer)
    if stand == "open" or (stand == "untouched" and reasoning.unmarked):
        return thoughts
    return one_of(answer, sequence(literal(reasoning.begin), thoughts)) if stand == "untouched" else answer
