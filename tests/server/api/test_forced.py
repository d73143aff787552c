"""What an answer's grammar lets a model write: calls, forms, and thoughts before them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pagemill_server.api.conversation import ToolChoice
from pagemill_server.api.forced import after_thoughts, forced_grammar
from pagemill_server.text import grammar
from pagemill_server.text.grammar import Grammar, GrammarCompiler
from pagemill_server.text.reasoning import REASONING_FORMATS, Stand
from pagemill_server.text.tool_formats import TOOL_FORMATS
from pagemill_server.text.tools import Tool
from tests.server.tiny import IM_END

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"], "additionalProperties": False}
A, B = Tool("a", SCHEMA, False, {}), Tool("b", SCHEMA, True, {})
YES = grammar.choice(["yes"])
HERMES = TOOL_FORMATS["hermes"]

Fits = Callable[[Grammar, str], bool]


@pytest.fixture(scope="module")
def fits(tiny: Path) -> Fits:
    compiler = GrammarCompiler(Tokenizer.from_file(str(tiny / "tokenizer.json")), [IM_END], 264)

    def check(made: Grammar, text: str) -> bool:
        matcher = compiler.matcher(grammar.compile(made))
        tokens = list(text.encode())
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    return check


def call(name: str, arguments: str = '{"n": 1}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO = f"{call('a')}\n{call('b')}"
WRONG = call("a", '{"n": 2}')


@pytest.mark.parametrize(
    ("choice", "output", "may", "may_not"),
    [
        (ToolChoice("required"), None, [call("a"), TWO], ["yes", "", WRONG]),
        (ToolChoice("required", parallel=False), None, [call("a")], [TWO]),
        (ToolChoice("required"), YES, [call("a")], ["yes"]),  # the form of words asks for nothing
        (ToolChoice("named", "b", parallel=False), None, [call("b")], [call("a"), "yes", ""]),
        (ToolChoice("auto"), YES, [call("a"), TWO, "yes"], ["no", WRONG]),
        (ToolChoice("auto"), None, ["yes", "no", "", call("b"), WRONG, call("a", "{}")], [call("b", "{}"), call("c")]),
    ],
)
def test_what_may_come(
    fits: Fits, choice: ToolChoice, output: Grammar | None, may: list[str], may_not: list[str]
) -> None:
    made = forced_grammar(HERMES, [A, B], choice, output)
    assert made is not None
    assert [text for text in may if not fits(made, text)] == []
    assert [text for text in may_not if fits(made, text)] == []


def test_without_anything_asked_for_it_is_free() -> None:
    assert forced_grammar(HERMES, [A], ToolChoice("auto"), None) is None
    assert forced_grammar(HERMES, [], ToolChoice("none"), None) is None
    assert forced_grammar(None, [], ToolChoice("none"), YES) == YES


@pytest.mark.parametrize(
    ("form", "stand", "may", "may_not"),
    [
        (
            "qwen3",
            "untouched",
            ["yes", "<think>hm</think>\n\nyes", "<think></think>yes"],
            ["hm</think>yes", "<think>yes"],
        ),
        ("qwen3", "open", ["hm</think>\n\nyes", "yes</think>yes"], ["yes", "hm</think>no", "hm</think>"]),
        ("qwen3", "closed", ["yes"], ["<think>hm</think>yes", "hm</think>yes"]),
        ("deepseek_r1", "untouched", ["hm</think>yes", "<think>hm</think>yes"], ["yes"]),
    ],
)
def test_thoughts_first(fits: Fits, form: str, stand: Stand, may: list[str], may_not: list[str]) -> None:
    made = after_thoughts(YES, REASONING_FORMATS[form], stand)
    assert [text for text in may if not fits(made, text)] == []
    assert [text for text in may_not if fits(made, text)] == []
