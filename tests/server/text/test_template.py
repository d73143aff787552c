from __future__ import annotations

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.text.template import ChatTemplate, TemplateRefused
from tests.server.tiny import CHAT_TEMPLATE

MESSAGES = [{"role": "user", "content": "<hi> & 'you'"}]


def render(source: str) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(MESSAGES)


def test_the_models_own() -> None:
    assert render(CHAT_TEMPLATE) == "<|im_start|>user\n<hi> & 'you'<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools %}tools{% else %}none{% endif %}", "none"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<hi> & \'you\'"}]'),  # not escaped for HTML
        ("{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{% endfor %}end", "end"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "<hi> & 'you'"),
        ("{{ strftime_now('%%') }}", "%"),
        ("a\n    {% if true %}\nb\n    {% endif %}\n", "a\nb\n"),  # blocks leave no white space
    ],
)
def test_what_hugging_face_gives_to_templates(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ messages[5].content }}", "has no element 5"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe"),  # what it is given can't be changed
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ strftime_now.__globals__.os }}", "unsafe"),
    ],
)
def test_refusals_carry_the_templates_words(source: str, message: str) -> None:
    with pytest.raises(TemplateRefused, match=message):
        render(source)


def test_one_that_is_no_template_is_a_broken_model() -> None:
    with pytest.raises(PagemillError, match="can't be compiled") as error:
        ChatTemplate("{% if %}")
    assert error.value.failure.reason is FailureReason.MODEL_INVALID
