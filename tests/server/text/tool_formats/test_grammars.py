"""What a grammar of calls lets a model write is what the same format's parser reads, and no more than that."""

from __future__ import annotations

import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pagemill_server.text import grammar
from pagemill_server.text.detokenizer import Detokenizer, TokenBytes
from pagemill_server.text.grammar import GrammarCompiler
from pagemill_server.text.names import TOOL_CALL_PARSERS
from pagemill_server.text.tool_formats import NEW_MISTRAL, TOOL_FORMATS
from pagemill_server.text.tools import Tool, ToolFormat
from tests.server.text.parsed import parse

SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["c", "°F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit"],
    "additionalProperties": False,
}
WEATHER = Tool("get_weather", SCHEMA, True, {})
CLOCK = Tool("clock", {"type": "object", "properties": {}, "additionalProperties": False}, False, {})
FORMATS = [*TOOL_FORMATS.values(), NEW_MISTRAL]
SPECIAL = ("<eos>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")


def compiler(special: tuple[str, ...] = SPECIAL) -> GrammarCompiler:
    """A token for every byte, and for the markers that are tokens of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return GrammarCompiler(backend, [backend.token_to_id("<eos>")], backend.get_vocab_size())


def written(made: GrammarCompiler, form: ToolFormat, tools: list[Tool], parallel: bool, seed: int) -> str:
    """What a model may write that picks at random from what the grammar lets it."""
    backend = made._backend
    eos, chance = backend.token_to_id("<eos>"), random.Random(seed)
    shown = Detokenizer(TokenBytes(backend), special=True)
    matcher = made.matcher(grammar.compile(form.calls(tools, parallel=parallel)))
    text = ""
    for _ in range(2_000):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(made.vocab_size) if bits >> token & 1]
        token = eos if eos in allowed and chance.random() < 0.5 else chance.choice(allowed)
        if token == eos:
            return text
        assert matcher.consume_token(token)
        text += shown.push(token)
    raise AssertionError(f"it never ends: {text[:200]}")


@pytest.mark.parametrize("form", FORMATS, ids=["hermes", "llama3_json", "mistral", "mistral, named"])
@pytest.mark.parametrize("special", [SPECIAL, ("<eos>",)], ids=["special markers", "plain markers"])
def test_is_read_as_calls_and_nothing_else(form: ToolFormat, special: tuple[str, ...]) -> None:
    made, names = compiler(special), set()
    for seed in range(12):
        text = written(made, form, [WEATHER, CLOCK], True, seed)
        seen = parse(form.parser(()), text)
        assert seen.words == ""
        assert seen.calls
        for name, arguments in seen.calls:
            names.add(name)
            values = json.loads(arguments)
            assert (
                values == {} if name == "clock" else values["unit"] in ("c", "°F") and set(values) <= {"unit", "days"}
            )
    assert names == {"get_weather", "clock"}


@pytest.mark.parametrize("form", FORMATS, ids=["hermes", "llama3_json", "mistral", "mistral, named"])
def test_one_call_unless_more_are_welcome(form: ToolFormat) -> None:
    made = compiler()
    assert {len(parse(form.parser(()), written(made, form, [CLOCK], False, seed)).calls) for seed in range(8)} == {1}
    assert max(len(parse(form.parser(()), written(made, form, [CLOCK], True, seed)).calls) for seed in range(8)) > 1


def test_a_tool_without_a_schema_takes_any_object() -> None:
    made, form = compiler(), TOOL_FORMATS["hermes"]
    matcher = made.matcher(grammar.compile(form.calls([Tool("f", {}, False, {})], parallel=False)))
    for text in ('<tool_call>\n{"name": "f", "arguments": {"any": [1, {"thing": null}]}}\n</tool_call>',):
        assert matcher.consume_tokens(made._backend.encode(text).ids)
        assert matcher.is_accepting()


def test_the_flags_names_are_the_codes() -> None:
    assert tuple(TOOL_FORMATS) == TOOL_CALL_PARSERS


def fits(form: ToolFormat, text: str, special: tuple[str, ...] = SPECIAL) -> bool:
    """Whether a model may write it where it may speak or make calls that match."""
    made = compiler(special)
    matcher = made.matcher(grammar.compile(form.words_or_calls([WEATHER], parallel=True)))
    tokens = made._backend.encode(text).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


CALLS = [
    '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "c"}}\n</tool_call>',
    '{"name": "get_weather", "parameters": {"unit": "c"}}',
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"unit": "c"}}]',
    '[TOOL_CALLS]get_weather[ARGS]{"unit": "c"}',
]


@pytest.mark.parametrize(("form", "call"), [*zip(FORMATS, CALLS, strict=True)])
@pytest.mark.parametrize("special", [SPECIAL, ("<eos>",)], ids=["special markers", "plain markers"])
def test_words_are_free_and_calls_match(form: ToolFormat, call: str, special: tuple[str, ...]) -> None:
    for words in ("", "It is <b>warm</b> [1] {so}.\n\nToday.", "é€", "<tool_cal", "[TOOL_CALL]"):
        assert fits(form, words, special)
    assert fits(form, call, special)
    for wrong in (call.replace('"c"', '"k"'), call.replace("get_weather", "other"), call[:-1], call + call[-1]):
        assert not fits(form, wrong, special)


@pytest.mark.parametrize(("form", "call"), [*zip(FORMATS, CALLS, strict=True)])
def test_words_before_a_call(form: ToolFormat, call: str) -> None:
    """Llama's comes first or after its marker."""
    if form.name == "llama3_json":
        assert fits(form, "<|python_tag|>" + call)
        assert not fits(form, "<|python_tag|>" + call.replace('"c"', '"k"'))
    else:
        assert fits(form, "Let me see. " + call)
        assert not fits(form, "Let me see. " + call.replace('"c"', '"k"'))
