"""Each kind of part and what is put together from parts, by the texts that a real matcher takes."""

from __future__ import annotations

import pytest

from pagemill_server.text.grammar import (
    Grammar,
    InvalidGrammar,
    bounds,
    cfg,
    choice,
    compile,
    json_object,
    json_schema,
    literal,
    one_of,
    regex,
    repeated,
    sequence,
    text_until,
)
from tests.server.text.grammar.constraining import CALL, begins, takes, walk

NUMBER = json_schema(
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
)
OTHER = json_schema(
    {"type": "object", "properties": {"b": {"const": "x"}}, "required": ["b"], "additionalProperties": False}
)
CALLS = repeated(sequence(literal("<t>"), NUMBER, literal("</t>")), literal("\n"))
THOUGHT = sequence(text_until("</think>"), NUMBER)
MARKED = sequence(text_until("<call>"), NUMBER)

TEXTS: list[tuple[Grammar, list[str], list[str]]] = [
    (choice(["cat", "cats", 'a"b\\c\n', "é"]), ["cat", "cats", 'a"b\\c\n', "é"], ["", "ca", "catss", "dog", "cat "]),
    (choice(["<call>"]), [], ["<call>"]),  # the text, not the token
    (regex("[0-9]{2}"), ["42"], ["4", "421", " 42"]),
    (regex("^[0-9]+$"), ["42"], ["", "4 "]),
    (regex("a|bc"), ["a", "bc"], ["ac", "abc"]),
    (regex(r"^\$[0-9]\$"), ["$1$"], ["1"]),
    (regex(r"a\$"), ["a$"], ["a"]),
    (regex(r"\d{4}/\d\d"), ["2024/05"], ["2024-05", "٢٠٢٤/05"]),
    (regex("é+[^a-z]"), ["éé!", "éß"], ["éa"]),
    (json_object(), ["{}", '{"a": [1, 2.5e3, null]}', '{"é":"\\n"}'], ["[]", "1", '{"a"}', '{"a": 1,}', "{} "]),
    (json_schema(True), ["1", '"x"', "[true]", "null", "{}"], ["x", "", "01"]),
    (json_schema({}), ["-0.5"], ["+1"]),
    (cfg('start: "a" b*\nb: "b" | "c"'), ["a", "abcb"], ["", "b", "aba"]),
    (cfg('root ::= "a" b*\nb ::= "b" | [c-d]'), ["a", "abdb"], ["", "b", "aba"]),
    (cfg('start: <call> "x"'), ["<call>x"], ["x"]),
    (literal('say "hi"\n\\'), ['say "hi"\n\\'], ["say", ""]),
    (literal("<call>go"), ["<call>go"], ["go", "<call>"]),
    (literal("go<call>"), ["go<call>"], ["go"]),
    (THOUGHT, ['hm {"b</thin\n</think>{"a": 1}', '</think>{"a":1}'], ['{"a": 1}', 'x</think>', 'x</think>y</think>{"a": 1}']),
    (MARKED, ['hm<call>{"a": 1}', '<call>{"a":1}'], ['hm{"a": 1}', '<call>']),
    (CALLS, ['<t>{"a": 1}</t>', '<t>{"a": 1}</t>\n<t>{"a":2}</t>'], ["", '<t>{"a": 1}</t>\n', '<t>{"a": 1}</t><t>{"a": 1}</t>']),
    (repeated(literal("ab"), most=2), ["ab", "abab"], ["", "ababab"]),
    (repeated(literal("ab"), most=1), ["ab"], ["abab"]),
    (repeated(choice(["x", "y"]), literal(","), most=3), ["x", "x,y,x"], ["x,", "x,x,x,x"]),
    (one_of(NUMBER, OTHER), ['{"a": 3}', '{"b": "x"}'], ['{"a": "x"}', "{}"]),
    (one_of(NUMBER, choice(["none"])), ['{"a": 3}', "none"], ["no", "{"]),
    (one_of(NUMBER), ['{"a": 3}'], ["{}"]),
    (sequence(NUMBER, NUMBER), ['{"a": 1}{"a": 2}'], ['{"a": 1}']),
    (sequence(one_of(sequence(literal("<t>"), THOUGHT), NUMBER), literal("!")), ['{"a": 1}!', '<t>x</think>{"a": 1}!'], ["!"]),
    (sequence(cfg('start: n "+" n\nn: /[0-9]+/'), cfg('start: n "-" n\nn: /[a-z]+/')), ["1+2a-b"], ["1+2a-1", "1-2a-b"]),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "taken", "refused"), TEXTS)
def test_what_a_grammar_takes(grammar: Grammar, taken: list[str], refused: list[str]) -> None:
    assert [text for text in taken if not takes(grammar, text)] == []
    assert [text for text in refused if takes(grammar, text)] == []


def test_ordinary_text_is_never_a_special_token() -> None:
    assert not takes(regex("(?s:.*)"), [*b"a", CALL])
    assert not takes(json_object(), [*b'{"', CALL, *b'": 1}'])


@pytest.mark.parametrize("seed", range(5))
def test_a_special_tokens_name_in_a_text_is_text(seed: int) -> None:
    """Of the two, one would be refused by the grammar and one end the answer in its middle."""
    assert walk(json_schema({"const": "<call> <|im_end|>"}), seed) == ([*b'"<call> <|im_end|>"'], True)


def test_a_marker_that_is_a_token_may_come_as_its_letters_too() -> None:
    """The parser of the answer sees the same text either way, so that what follows must match as well."""
    assert takes(MARKED, [*b'hm<call>{"a": 1}'])
    assert not takes(MARKED, [*b"hm<call>words", CALL, *b'{"a": 1}'])


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_end_in_texts_that_the_grammar_takes(seed: int) -> None:
    for grammar, _, _ in TEXTS:
        ids, ended = walk(grammar, seed)
        assert not ended or takes(grammar, ids), ids


def test_equal_parts_are_one_and_others_keep_their_names() -> None:
    grammar = sequence(NUMBER, literal(","), NUMBER, OTHER)
    names = [name for name, _ in grammar.parts]
    assert len(names) == len(set(names)) == 4
    assert all(part in grammar.parts for part in NUMBER.parts)


def test_white_space_has_an_end() -> None:
    """Small models love new lines: a space after a comma or a colon is all that there may be."""
    assert begins(NUMBER, '{"a": ')
    for endless in ("{ ", "{\n", '{"a":  ', '{"a":\n', '{"a" ', '{"a": 1 '):
        assert not begins(NUMBER, endless), endless


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: choice([]), "nothing to choose from"),
        (lambda: choice(["a", ""]), "a choice is empty"),
        (lambda: choice(["x"] * (bounds.MAX_CHOICES + 1)), "2049 choices"),
        (lambda: choice(["x" * 70_000]), "70000 characters"),
        (lambda: regex("x" * 8193), "8193 characters"),
        (lambda: regex("ab\\"), "backslash"),
        (lambda: regex("\\"), "backslash"),
        (lambda: regex("a\\\\\\"), "backslash"),
        (lambda: cfg("x"), "neither lark"),
        (lambda: cfg('start: "' + "x" * 70_000 + '"'), "characters"),
        (lambda: text_until(""), "marker"),
        (lambda: literal("x" * 9000), "9000 characters"),
        (lambda: sequence(), "at least one part"),
        (lambda: one_of(), "at least one part"),
        (lambda: compile(sequence(*(literal(f"{i}" * 2000) for i in range(40)))), "characters"),
    ],
)  # fmt: skip
def test_what_is_too_much_or_nothing_is_refused_as_a_value(make: object, says: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        make()  # type: ignore[operator]
    assert says in str(refused.value).lower()
