"""What would end every answer with an error, or hold up the answers beside it, is refused before anybody is promised one."""

from __future__ import annotations

import pytest

from pagemill_server.text.grammar import Grammar, InvalidGrammar, cfg, choice, compile, json_schema, trial
from tests.server.text.grammar.constraining import compiler


@pytest.mark.parametrize(
    "grammar",
    [
        json_schema({"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(900)}}),
        cfg('start: "bbb" ' + "x? " * 900 + '\nx: "y"'),
        cfg('start: ("a" | "zzz" ' + "x? " * 900 + ')\nx: "y"'),
    ],
    ids=["an object", "a grammar", "behind the last of two ways"],
)
def test_a_limit_that_is_met_after_a_few_tokens(grammar: Grammar) -> None:
    with pytest.raises(InvalidGrammar, match="items"):
        compiler().check(compile(grammar))


def test_a_mask_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    text = compile(choice(["never compiled before"]))
    with monkeypatch.context() as patch:
        patch.setattr(trial, "MASK_SECONDS", 0.0)
        with pytest.raises(InvalidGrammar, match="too long"):
            compiler().check(text)
    compiler().check(text)
