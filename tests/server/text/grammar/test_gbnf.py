"""Which notation a client wrote, and that what is neither is refused."""

from __future__ import annotations

import pytest

from pagemill_server.text.grammar import InvalidGrammar, cfg, compile
from pagemill_server.text.grammar.gbnf import MAX_GBNF_RULES, to_lark
from tests.server.text.grammar.constraining import compiler, takes

# As llama.cpp's and vLLM's guides write them.
JSON_ARRAY = r"""
# a list of words
root   ::= "[" ws (string ("," ws string)*)? ws "]"
string ::= "\"" [^"\\]* "\""
ws     ::= [ \t]?
"""
SQL = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""


def test_lark_is_passed_on() -> None:
    text = 'start: "a" | b\nb: "b"'
    assert to_lark(text) == text


def test_gbnf_is_translated() -> None:
    assert takes(cfg(JSON_ARRAY), '["a", "b c"]')
    assert not takes(cfg(JSON_ARRAY), '["a" "b"]')
    assert takes(cfg(SQL), "SELECT col_1  from table_2  where col_2 = 1 ")
    assert not takes(cfg(SQL), "SELECT col_3  from table_2  where col_2 = 1 ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "neither"),
        ("hello", "neither"),
        ('root ::= "x" nope', "nope"),
        ('root ::= "x', "read"),
        ('other ::= "x"', "root"),
        ('root ::= ("x"', "read"),
        ("root ::= " + "(" * 5000, "read"),
        ("root ::= a\n" + "a ::= a\n" * MAX_GBNF_RULES, "at most 500 rules"),
        ('start: %json {"not": {}}', "%json"),
        ("start: nope", "nope"),
        ('start: "a', "lexer error"),
        ('start: A\nA: A "x"', "circular"),
        ("start: start", "no text matches"),
        ('%import "/etc/passwd"\nstart: "a"', "expected"),
        ('start: <nobody> "a"', "nobody"),
        ("start: @pagemill", "pagemill"),
        ("start: " + "x? " * 5000 + '\nx: "x"', "too big"),
    ],
)
def test_what_is_neither_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        compiler().check(compile(cfg(text)))
    assert says in str(refused.value).lower()
