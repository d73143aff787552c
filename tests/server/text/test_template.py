from __future__ import annotations

import json
from typing import Any

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


def test_two_templates_for_two_kinds_of_conversations() -> None:
    template = ChatTemplate("plain{{ tools }}", tool_use="for {{ tools | length }} tools")
    assert template.render(MESSAGES) == "plainNone"
    assert template.render(MESSAGES, tools=[]) == "plainNone"
    assert template.render(MESSAGES, tools=[{}, {}]) == "for 2 tools"


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("{{ messages }}", False),
        ("{% if tools %}{% endif %}", True),
        ("{% if tools is defined %}{% endif %}", True),
        ("{# tools #}{{ 'tools' }}{{ message.tools }}", False),
        ("{% for tools in messages %}{{ tools }}{% endfor %}", False),
    ],
)
def test_whether_it_reads_tools(source: str, uses: bool) -> None:
    assert ChatTemplate(source).uses_tools is uses


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[1].content + '!' }}", "!"),
        ("{% if messages[1].content is none %}null{% endif %}", "null"),
        ("{% if messages[1]['content'] is not none %}{% else %}null{% endif %}", "null"),
        ("{% if messages[1].reasoning_content is none %}{% endif %}{{ messages[1].content }}", ""),
    ],
)
def test_null_is_null_only_where_it_is_looked_for(source: str, text: str) -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    assert ChatTemplate(source).render([*MESSAGES, call]) == text


def test_reasoning_goes_by_each_of_its_names() -> None:
    source = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert ChatTemplate(source).render([{"role": "assistant", "content": "", "reasoning": "hm"}]) == "hm hm"


CONTINUED: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}


def test_a_final_message_that_says_the_mark_itself() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    text = "\x03PAGEMILL_CONTINUES_HERE and"
    assert template.render([{"role": "assistant", "content": text}], **CONTINUED) == f"[{text}"


@pytest.mark.parametrize(
    ("messages", "source", "message"),
    [
        ([], "x", "needs a final message"),
        ([{"role": "assistant", "tool_calls": []}], "x", "needs a final message"),
        ([{"role": "assistant", "content": ["x"]}], "x", "needs a final message"),
        ([{"role": "assistant", "content": "a"}], "x", "leaves the final message out"),
        ([{"role": "assistant", "content": "a"}], "{{ messages[0].content | lower }}", "or alters it"),
    ],
)
def test_what_cannot_be_continued(messages: list[dict[str, Any]], source: str, message: str) -> None:
    with pytest.raises(TemplateRefused, match=message):
        ChatTemplate(source).render(messages, **CONTINUED)


def test_both_ends_at_once_are_refused() -> None:
    with pytest.raises(TemplateRefused, match="continue_final_message and add_generation_prompt"):
        ChatTemplate("x").render(MESSAGES, continue_final_message=True)


def test_variables_are_the_clients() -> None:
    template = ChatTemplate("{{ enable_thinking }}{{ deep.er[1] }}{{ bos_token }}", "<s>")
    assert template.render(MESSAGES, enable_thinking=False, deep={"er": [1, "two"]}) == "Falsetwo<s>"
    assert template.variables == {"enable_thinking", "deep", "bos_token"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"messages": []}, "can't set messages"),
        ({"bos_token": "", "tools": []}, "can't set bos_token, tools"),
        ({"raise_exception": 1}, "can't set raise_exception"),
        ({"self": 1}, "can't set self"),
        ({"namespace": 1}, "can't set namespace"),
        ({"chat_template": "{{ 1 }}"}, "can't set chat_template"),
        ({"a": "x" * 200_000}, "hold too much"),
        ({"a": [0] * 2000}, "hold too much"),
        ({"a": 10**400_000}, "hold too much"),
        ({"a": json.loads("[" * 100 + "]" * 100)}, "nested at most 16"),
        ({"a": object()}, "must be JSON"),
    ],
)
def test_variables_that_are_refused(variables: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateRefused, match=message):
        ChatTemplate("x").check_variables(variables)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * n }}",
        "{{ n * 'a' }}",
        "{{ [1] * n }}",
        "{{ 9 ** n }}",
        "{{ (9 ** 9999999) ** 9999999 }}",
        "{% for _ in range(99999) %}{{ long }}{% endfor %}",
    ],
)
def test_no_prompt_grows_without_bound(source: str) -> None:
    with pytest.raises(TemplateRefused, match="than 33554432"):
        ChatTemplate(source).render(MESSAGES, n=10**10, long="long" * 1000)


def test_arithmetic_is_not_held_up() -> None:
    assert ChatTemplate("{{ 10**6 * 10**6 }} {{ 'ab' * 3 }} {{ 2.5 * 2 }} {{ 2 ** 0.5 > 1 }}").render([]) == (
        "1000000000000 ababab 5.0 True"
    )


def test_no_rendering_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagemill_server.text.template_environment.MAX_SECONDS", 0.01)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = m.x %}{% endfor %}{% endfor %}"
    template = ChatTemplate("{% set m = {} %}" + loops)
    with pytest.raises(TemplateRefused, match=r"takes more than 0\.01 s"):
        template.render(MESSAGES)
    assert ChatTemplate("{{ messages[0].role }}").render(MESSAGES) == "user"


def test_deep_messages_are_refused_and_not_the_servers_end() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    with pytest.raises(TemplateRefused, match="RecursionError"):
        ChatTemplate("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(messages) }}").render([{"content": deep}])
