"""How much a grammar may be. What is larger costs a text thread seconds or the machine gigabytes, whatever it means.

Each number is where llguidance's cost was measured to leave the tenths of a second; its own limits bound what a small text can
blow up to, and the work for one token. Raises InvalidGrammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLParserLimits

from pagemill_server.text.grammar.errors import InvalidGrammar

MAX_CHARACTERS = 128 * 1024  # of a JSON schema, and of a whole grammar as it is written for the compiler
MAX_REGEX_CHARACTERS = 8 * 1024
MAX_CFG_CHARACTERS = 64 * 1024
MAX_LITERAL_CHARACTERS = 8 * 1024
MAX_CHOICES = 2048
MAX_CHOICE_CHARACTERS = 64 * 1024  # all of them together

LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=100_000,
    max_grammar_size=30_000,
    verbose_errors=False,
)
# Of a grammar that a client wrote: the work for a token grows with the square of the rules that are open at once.
CFG_LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_grammar_size=3_000, verbose_errors=False)


def check_whole(text: str) -> None:
    check_size("The grammar", text, MAX_CHARACTERS)


def check_regex(pattern: str) -> None:
    check_size("The regular expression", pattern, MAX_REGEX_CHARACTERS)


def check_cfg(text: str) -> None:
    check_size("The grammar", text, MAX_CFG_CHARACTERS)


def check_literal(text: str) -> None:
    check_size("The text", text, MAX_LITERAL_CHARACTERS)


def check_choices(texts: Sequence[str]) -> None:
    if not texts:
        raise InvalidGrammar("There is nothing to choose from.")
    if not all(texts):
        raise InvalidGrammar("A choice is empty; each has at least one character.")
    if len(texts) > MAX_CHOICES:
        raise InvalidGrammar(f"There are {len(texts)} choices; at most {MAX_CHOICES} are taken.")
    check_size("All choices together", "".join(texts), MAX_CHOICE_CHARACTERS)


def check_size(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidGrammar(f"{what} has {len(text)} characters; at most {most} are taken.")
