from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import ChatOptions
from pagemill_server.text.chat_formats import chat_formats
from pagemill_server.text.tokenizer import ModelTokenizer
from pagemill_server.text.tool_formats import NEW_MISTRAL, TOOL_FORMATS
from tests.server.text.chat_templates import LLAMA, MISTRAL, QWEN


def tokenizer(template: str | None, tool_template: str | None = None) -> ModelTokenizer:
    return ModelTokenizer(Tokenizer(models.BPE()), 0, (1,), "<s>", "</s>", template, tool_template)


def test_by_the_models_template() -> None:
    found = chat_formats(tokenizer(QWEN), ChatOptions())
    assert found.template is not None
    assert found.tool_format is TOOL_FORMATS["hermes"]
    assert found.reasoning is not None
    assert found.reasoning.name == "qwen3"


def test_as_the_flags_say() -> None:
    none = chat_formats(tokenizer(QWEN), ChatOptions(tool_call_parser="none", reasoning_parser="none"))
    assert (none.tool_format, none.reasoning) == (None, None)
    named = chat_formats(tokenizer(QWEN), ChatOptions(tool_call_parser="llama3_json", reasoning_parser="deepseek_r1"))
    assert named.tool_format is TOOL_FORMATS["llama3_json"]
    assert named.reasoning is not None
    assert named.reasoning.name == "deepseek_r1"
    newer = tokenizer(MISTRAL + "{{ '[ARGS]' }}")
    assert chat_formats(newer, ChatOptions(tool_call_parser="mistral")).tool_format is NEW_MISTRAL


def test_a_template_of_the_users_takes_the_place_of_all_the_models() -> None:
    found = chat_formats(tokenizer(QWEN, QWEN), ChatOptions(chat_template=LLAMA))
    assert found.template is not None
    assert found.template.source == LLAMA
    assert found.tool_format is TOOL_FORMATS["llama3_json"]
    assert found.reasoning is None


def test_the_template_for_tools_shows_the_format() -> None:
    found = chat_formats(tokenizer("{{ messages }}", MISTRAL), ChatOptions())
    assert found.tool_format is TOOL_FORMATS["mistral"]


@pytest.mark.parametrize("template", [None, ""])
def test_no_template_no_chat(template: str | None) -> None:
    found = chat_formats(tokenizer(template), ChatOptions(tool_call_parser="hermes", reasoning_parser="qwen3"))
    assert (found.template, found.tool_format, found.reasoning) == (None, None, None)


def test_a_broken_one_of_the_users_is_the_users_mistake() -> None:
    with pytest.raises(PagemillError, match=r"^--chat-template: it can't be compiled: .*endif") as error:
        chat_formats(tokenizer(QWEN), ChatOptions(chat_template="{% if a %}{% endfor %}"))
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
    with pytest.raises(PagemillError, match="the model's chat template") as error:
        chat_formats(tokenizer("{% if"), ChatOptions())
    assert error.value.failure.reason is FailureReason.MODEL_INVALID
