"""Structured output from Python, in vLLM's spelling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pagemill_server import LLM, SamplingParams, StructuredOutputsParams
from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.text.grammar import choice, compile
from tests.server.tiny import write_tiny_llama

PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(write_tiny_llama(tmp_path_factory.mktemp("tiny"))), kv_cache_memory_bytes="1MiB", block_size=8) as llm:
        yield llm


def said(llm: LLM, **settings: Any) -> list[str]:
    params = SamplingParams(**({"max_tokens": 60, "n": 4, "seed": 1} | settings))
    (result,) = llm.generate("once", params)
    assert {output.finish_reason for output in result.outputs} == {"stop"}
    return [output.text for output in result.outputs]


def form(**settings: Any) -> dict[str, Any]:
    return {"structured_outputs": StructuredOutputsParams(**settings)}


def test_every_kind(llm: LLM) -> None:
    assert all(0 <= json.loads(text)["age"] <= 99 for text in said(llm, **form(json=PERSON)))
    assert all(0 <= json.loads(text)["age"] <= 99 for text in said(llm, **form(json=json.dumps(PERSON))))
    assert all(len(text) == 4 and text.isdigit() for text in said(llm, **form(regex="[0-9]{4}")))
    assert set(said(llm, **form(choice=["yes", "no"]))) <= {"yes", "no"}
    assert set(said(llm, **form(grammar='root ::= "a" | "b"'))) <= {"a", "b"}
    (result,) = llm.generate("once", SamplingParams(max_tokens=3, **form(json_object=True)))
    assert result.outputs[0].text.startswith("{")


def test_a_compiled_grammar_is_taken_as_it_is(llm: LLM) -> None:
    assert said(llm, grammar=compile(choice(["so"]))) == ["so"] * 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (form(), "exactly one of json, regex"),
        (form(regex="a", choice=["b"]), "exactly one"),
        (form(regex="("), "structured_outputs can't be enforced"),
        (form(json={"not": {}}), "structured_outputs can't be enforced"),
        (form(json="{"), "no JSON"),
        (form(json=3), "structured_outputs.json"),
        (form(choice="yes"), "structured_outputs.choice"),
        (form(choice=[1]), "structured_outputs.choice"),
        (form(choice=[]), "nothing to choose"),
        ({"grammar": "hello"}, "structured_outputs can't be enforced"),
        ({"grammar": '{"grammars": []}'}, "structured_outputs can't be enforced"),
        ({"structured_outputs": {"regex": "a"}}, "StructuredOutputsParams"),
        (form(regex="a") | {"ignore_eos": True}, "ignore_eos excludes"),
    ],
)
def test_what_cannot_be_is_a_value_error(llm: LLM, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSampling) as refused:
        llm.generate("once", SamplingParams(**settings))
    assert says in str(refused.value)
