"""The grammar of an answer that isn't free: a tool call that must come, words of a given form, either, thoughts before.

Pure; used by `api/conversation`.
"""

from __future__ import annotations

from pagemill_server.text.grammar import Grammar, literal, one_of, regex, sequence, text_until
from pagemill_server.text.reasoning import ReasoningFormat, Stand

_NEW_LINES = "[\\r\\n]{0,4}"  # after the thoughts, as templates write them


def forced_grammar(calls: Grammar | None, output: Grammar | None, *, must_call: bool) -> Grammar | None:
    """None: the model writes what it likes. Where a call must come, the form of words asks for nothing."""
    if must_call or output is None:
        return calls if must_call else None
    return output if calls is None else one_of(calls, output)


def after_thoughts(answer: Grammar, reasoning: ReasoningFormat, stand: Stand) -> Grammar:
    """The answer may only come once the model has thought, if it has begun to, or would begin."""
    thoughts = sequence(text_until(reasoning.end), regex(_NEW_LINES), answer)
    if stand == "open" or (stand == "untouched" and reasoning.unmarked):
        return thoughts
    return one_of(answer, sequence(literal(reasoning.begin), thoughts)) if stand == "untouched" else answer
