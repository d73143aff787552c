"""Chat templates: the model's own Jinja makes a prompt of messages, in a sandbox (`template_environment`).

Renders as transformers' `apply_chat_template` does. Runs in the text threads; called by `api/conversation` and `LLM`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.text.template_environment import TemplateEnvironment

_CONTINUED = "\N{END OF TEXT}PAGEMILL_CONTINUES_HERE"  # marks the final message's end while it is rendered
_REASONING = ("reasoning_content", "thinking", "reasoning")  # templates read the first, gpt-oss' the second
_PROBE = "PAGEMILL_PROBE"
_ASKS_FOR_NULL = re.compile(r"\bcontent\b['\"]?\]?\s*(is|==|!=)\s*(not\s+)?(none|None)\b")
_OWN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"})
_ELSEWHERE = frozenset({"chat_template", "tokenize", "return_dict", "self"})  # arguments in Python, no variables
_MOST_VALUES, _MOST_CHARACTERS, _DEEPEST = 1_000, 100_000, 16  # of a client's variables


class TemplateRefused(Exception):
    """The template would not render these messages; the message is the template's own."""


class ChatTemplate:
    """A compiled template. `bos_token` and `eos_token` are strings, as templates write them into the text.

    Some models have a second template, `tool_use`, for conversations with tools.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "", tool_use: str | None = None) -> None:
        self._environment = TemplateEnvironment()
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._plain = self._compile(source)
        self._tool_use = self._plain if tool_use is None else self._compile(tool_use)
        self.source = source if tool_use is None else tool_use  # the one that shows how tools are called
        read = [jinja2.meta.find_undeclared_variables(self._environment.parse(text)) for text in (source, self.source)]
        self.uses_tools = "tools" in read[-1]
        self.variables = frozenset().union(*read)  # all that it reads, a client's and its own
        self._knows_null = any(_ASKS_FOR_NULL.search(text) for text in (source, self.source))
        self.takes_system = self._shows({"role": "system", "content": _PROBE}, {"role": "user", "content": "?"})
        self._reserved = _OWN | _ELSEWHERE | set(self._environment.globals)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt, with the turn of the assistant opened, or the final message left open. Raises TemplateRefused.

        `variables` are the client's (`enable_thinking` …): JSON, within bounds, none of the template's own.
        """
        self.check_variables(variables)
        if continue_final_message:
            if add_generation_prompt:
                raise TemplateRefused("continue_final_message and add_generation_prompt are not to be had together.")
            messages = _open_ended(messages)
        prepared = [self._prepared(message) for message in messages]
        template = self._tool_use if tools else self._plain
        own = {"messages": prepared, "tools": list(tools) if tools else None, "documents": None}
        prompt = self._render(template, own | variables | {"add_generation_prompt": add_generation_prompt})
        return _cut(prompt) if continue_final_message else prompt

    def check_variables(self, variables: Mapping[str, Any]) -> None:
        """Raises TemplateRefused for a client's variable that would stand for one of the template's own, and for too many."""
        if taken := sorted(self._reserved & set(variables)):
            raise TemplateRefused(f"chat_template_kwargs can't set {', '.join(taken)}.")
        values, characters = _weigh(variables, _DEEPEST)
        if values > _MOST_VALUES or characters > _MOST_CHARACTERS:
            raise TemplateRefused(
                f"chat_template_kwargs hold too much: at most {_MOST_VALUES} values of {_MOST_CHARACTERS} characters together."
            )

    def _shows(self, *messages: Mapping[str, Any]) -> bool:
        """Whether the probe in these messages is in their prompt."""
        try:
            return _PROBE in self._render(
                self._plain, {"messages": messages, "tools": None, "add_generation_prompt": True}
            )
        except TemplateRefused:
            return False

    def _prepared(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A copy. Content that is null stays so for templates that look for it; to others it would be a mistake or "None"."""
        made = _with_reasoning(message)
        return made if self._knows_null or made.get("content") is not None else {**made, "content": ""}

    def _compile(self, source: str) -> jinja2.Template:
        try:
            return self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise PagemillError(
                FailureReason.MODEL_INVALID, f"the model's chat template can't be compiled: {error}"
            ) from error

    def _render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        try:
            return self._environment.render(template, {**variables, **self._tokens})
        except jinja2.TemplateError as error:
            raise TemplateRefused(str(error) or type(error).__name__) from error
        except (
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RecursionError,
            MemoryError,
        ) as error:
            # A template is a program of its own: what these messages make it do wrong is told to whoever sent them.
            raise TemplateRefused(f"{type(error).__name__} in the chat template: {error}") from error


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, its reasoning under each name that templates have for it."""
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    return dict(message) if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _open_ended(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with a mark where the last one ends."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise TemplateRefused("continue_final_message needs a final message with text to continue.")
    *others, final = (dict(message) for message in messages)
    return [*others, {**final, "content": f"{content}{_CONTINUED} "}]


def _cut(prompt: str) -> str:
    """Up to the mark. Where the template took away the space after it, it takes away that of any message's end."""
    place = prompt.rfind(_CONTINUED)
    if place < 0:
        raise TemplateRefused("continue_final_message: the chat template leaves the final message out, or alters it.")
    kept = prompt[:place]
    return kept if prompt.startswith(" ", place + len(_CONTINUED)) else kept.rstrip()


def _weigh(value: object, depth: int) -> tuple[int, int]:
    """Values and characters in it. Raises TemplateRefused for what is nested deeper, or no JSON."""
    if isinstance(value, str):
        return 1, len(value)
    if value is None or isinstance(value, (bool, int, float)):
        return 1, value.bit_length() // 3 if isinstance(value, int) else 1
    if depth == 0 or not isinstance(value, (Mapping, list, tuple)):
        raise TemplateRefused(f"chat_template_kwargs must be JSON, nested at most {_DEEPEST} deep.")
    inner = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
    weights = [_weigh(part, depth - 1) for part in inner]
    return 1 + sum(values for values, _ in weights), sum(characters for _, characters in weights)
