from __future__ import annotations

import pytest

from pagemill_server.text.detection import reasoning_of, tool_format_of
from pagemill_server.text.template import ChatTemplate
from pagemill_server.text.tool_formats import NEW_MISTRAL
from tests.server.text.chat_templates import DEEPSEEK, GEMMA, LLAMA, MISTRAL, QWEN
from tests.server.tiny import CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("source", "tools", "reasoning"),
    [
        (QWEN, "hermes", "qwen3"),
        (LLAMA, "llama3_json", None),
        (MISTRAL, "mistral", None),
        (MISTRAL + "{{ '[THINK]' }}", "mistral", "mistral"),
        (DEEPSEEK, "hermes", "deepseek_r1"),  # it offers no tools, so that we do
        (GEMMA, "hermes", None),
        (CHAT_TEMPLATE, "hermes", None),
        ("{{ tools }}<|python_tag|>", "llama3_json", None),
        ("{{ tools }} in words of its own", None, None),
        ("{{ tools }}<tool_call>\n<function=f>", None, None),  # Qwen3-Coder's XML
        ('{{ tools }}<|python_start|> ipython "parameters"', None, None),  # Llama 4's Python
        ("{{ messages }}</think>", "hermes", "qwen3"),
    ],
)
def test_by_the_template(source: str, tools: str | None, reasoning: str | None) -> None:
    form, thoughts = tool_format_of(source, ChatTemplate(source).uses_tools), reasoning_of(source)
    assert (form and form.name, thoughts and thoughts.name) == (tools, reasoning)


def test_newer_mistrals_write_calls_by_name() -> None:
    assert tool_format_of(MISTRAL + "{{ '[ARGS]' }}", True) is NEW_MISTRAL
    assert tool_format_of(MISTRAL, True) is not NEW_MISTRAL
