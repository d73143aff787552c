"""Our prompts are those of transformers' apply_chat_template, for templates as the families have them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pagemill_server.text.template import ChatTemplate
from tests.server.text.chat_templates import DEEPSEEK, GEMMA, LLAMA, MISTRAL, QWEN
from tests.server.tiny import CHAT_TEMPLATE

CALL = {"id": "abcdef123", "type": "function", "function": {"name": "f", "arguments": {"ort": "Zürich <&>", "n": 1.0}}}
ANSWER = {"role": "tool", "tool_call_id": "abcdef123", "name": "f", "content": "20 °C"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "né <b>", "parameters": {"type": "object"}}}]
HELLO = {"role": "user", "content": " hello <there> & 'you' "}
CONVERSATIONS: dict[str, list[Mapping[str, Any]]] = {
    "one turn": [HELLO],
    "system and turns": [{"role": "system", "content": "Be"}, HELLO, {"role": "assistant", "content": "Hi "}, HELLO],
    "a call and its answer": [HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}, ANSWER],
    "calls with words": [HELLO, {"role": "assistant", "content": "So", "tool_calls": [CALL, CALL]}, ANSWER, ANSWER],
    "a thought": [HELLO, {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}],
    "a thought by another name": [HELLO, {"role": "assistant", "content": "Hi", "reasoning": "hm"}],
    "a thought in the words": [HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi"}],
}
TEMPLATES = {
    "qwen": QWEN,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
    "tiny": CHAT_TEMPLATE,
}
REFUSED = object()


def ours(source: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> object:
    try:
        return ChatTemplate(source, "<s>", "</s>").render(messages, **options)
    except Exception:  # noqa: BLE001  why is another test's matter
        return REFUSED


def theirs(source: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> object:
    chat = [copy.deepcopy(dict(message)) for message in messages]
    try:
        made: Any = render_jinja_template([chat], chat_template=source, bos_token="<s>", eos_token="</s>", **options)
    except Exception:  # noqa: BLE001
        return REFUSED
    return made[0][0]


@pytest.mark.parametrize("thinking", [{}, {"enable_thinking": False}], ids=["", "enable_thinking=False"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts(template: str, conversation: str, tools: Any, thinking: dict[str, Any]) -> None:
    for opened in (True, False):
        options = {"tools": tools, "add_generation_prompt": opened, **thinking}
        asked = TEMPLATES[template], CONVERSATIONS[conversation]
        assert ours(*asked, **options) == theirs(*asked, **options)


@pytest.mark.parametrize("end", ["", " ", "\n\n", "Paris", "Paris is ", " </s>", "a{{ b }}"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_final_message_goes_on(template: str, end: str) -> None:
    messages = [HELLO, {"role": "assistant", "content": f"The capital.{end}"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    prompt = ours(TEMPLATES[template], messages, **options)
    assert prompt == theirs(TEMPLATES[template], messages, **options)
    assert isinstance(prompt, str)
    assert prompt.endswith(("The capital." + end, ("The capital." + end).rstrip()))


def test_some_of_each_render() -> None:
    """Lest all of them agree in refusing."""
    rendered = {
        name: sum(ours(source, c, tools=TOOLS) is not REFUSED for c in CONVERSATIONS.values())
        for name, source in TEMPLATES.items()
    }
    assert rendered == {"qwen": 7, "llama": 6, "mistral": 7, "gemma": 4, "deepseek": 7, "tiny": 7}
