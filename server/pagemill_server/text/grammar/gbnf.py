"""The notations of context-free grammars that clients write, as the one that llguidance reads: Lark.

Lark is passed on; llama.cpp's GBNF, which vLLM's users know as EBNF, is translated by llguidance's own translator.
"""

from __future__ import annotations

import re

from llguidance import gbnf_to_lark

from pagemill_server.text.grammar.bounds import check_cfg
from pagemill_server.text.grammar.errors import InvalidGrammar

MAX_GBNF_RULES = 500  # the translator looks at all of them once for each of a chain


def to_lark(text: str) -> str:
    """Raises InvalidGrammar for what is neither."""
    check_cfg(text)
    if "%json" in text:
        raise InvalidGrammar("%json is not supported in a grammar; send the schema as a JSON schema.")
    if gbnf_to_lark.is_lark_syntax(text):
        return text
    if "::=" not in text:
        raise InvalidGrammar("The grammar is neither Lark (no rule `start:`) nor GBNF (no rule `root ::=`).")
    if len(re.findall("::=", text)) > MAX_GBNF_RULES:
        raise InvalidGrammar(f"A GBNF grammar has at most {MAX_GBNF_RULES} rules.")
    try:
        return gbnf_to_lark.gbnf_to_lark(text)
    except Exception as error:  # noqa: BLE001  the translator raises plain Exception
        raise InvalidGrammar(f"The GBNF grammar can't be read: {str(error)[:300]}") from None
