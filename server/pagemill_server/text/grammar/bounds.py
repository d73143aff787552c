"""How much a grammar may be. What is larger costs a text thread seconds or the machine gigabytes, whatever it means.

llguidance's own limits (`LIMITS`) bound what a small text can blow up to, and the work for one token. Raises InvalidGrammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLParserLimits

from pagemill_server.text.grammar.errors import InvalidGrammar

MAX_CHARACTERS = 256 * 1024  # of a whole grammar, all parts of it, as it is written for the compiler
MAX_REGEX_CHARACTERS = 8 * 1024
MAX_CFG_CHARACTERS = 64 * 1024
MAX_CHOICES = 2048
MAX_CHOICE_CHARACTERS = 64 * 1024  # all of them together
MAX_DEPTH = 64  # of brackets in a grammar, and of a schema's nesting

LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=25_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


def check_whole(text: str) -> None:
    _check_size("The grammar", text, MAX_CHARACTERS)


def check_regex(pattern: str) -> None:
    _check_size("The regular expression", pattern, MAX_REGEX_CHARACTERS)
    check_depth(pattern)


def check_cfg(text: str) -> None:
    _check_size("The grammar", text, MAX_CFG_CHARACTERS)
    check_depth(text)


def check_choices(texts: Sequence[str]) -> None:
    if not texts:
        raise InvalidGrammar("There is nothing to choose from.")
    if not all(texts):
        raise InvalidGrammar("A choice is empty; each has at least one character.")
    if len(texts) > MAX_CHOICES:
        raise InvalidGrammar(f"There are {len(texts)} choices; at most {MAX_CHOICES} are taken.")
    _check_size("All choices together", "".join(texts), MAX_CHOICE_CHARACTERS)


def check_depth(text: str) -> None:
    """Parsers of grammars call themselves for each bracket within another; this counts those in strings too."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_DEPTH:
            raise InvalidGrammar(f"The brackets are nested deeper than {MAX_DEPTH}.")


def _check_size(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidGrammar(f"{what} has {len(text)} characters; at most {most} are taken.")
