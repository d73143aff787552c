"""The real SmolLM2 held to forms: what it says fits them, and is what it would have said where it fits anyway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pagemill_server import LLM, SamplingParams, StructuredOutputsParams
from tests.server.real_model import real_model

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Ada Lovelace is 36 years old. Answer with JSON: her name and her age."}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(real_model().path), kv_cache_memory_bytes="256MiB", max_model_len=1024, dtype="float32") as llm:
        yield llm


def said(llm: LLM, **settings: Any) -> tuple[str, str]:
    form = StructuredOutputsParams(**settings)
    (result,) = llm.chat(ASK, SamplingParams(temperature=0, max_tokens=80, structured_outputs=form))
    return result.outputs[0].text, result.outputs[0].finish_reason


def test_a_schema(llm: LLM) -> None:
    text, reason = said(llm, json=PERSON)
    assert reason == "stop"
    assert json.loads(text).keys() == {"name", "age"}
    assert "Ada" in json.loads(text)["name"]


def test_a_choice_a_regex_and_a_grammar(llm: LLM) -> None:
    assert said(llm, choice=["thirty-six", "twelve"]) in (("thirty-six", "stop"), ("twelve", "stop"))
    text, reason = said(llm, regex=r"[A-Z][a-z]+ is \d{2}\.")
    assert reason == "stop"
    assert re.fullmatch(r"[A-Z][a-z]+ is \d{2}\.", text)
    assert said(llm, grammar='root ::= "Ada: " ("36" | "63")')[0] in ("Ada: 36", "Ada: 63")


def test_a_form_that_fits_any_text_changes_nothing(llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=40, logprobs=1)
    held = replace(free, structured_outputs=StructuredOutputsParams(regex="(?s:.*)"))
    (alone,), (masked,) = llm.chat(ASK, free), llm.chat(ASK, held)
    assert masked.outputs[0] == alone.outputs[0]
