"""Chat templates: the model's own Jinja, in a sandbox that can neither reach Python nor change what it is given.

The environment is the one that Hugging Face documents (https://huggingface.co/docs/transformers/chat_templating): trimmed
blocks, `raise_exception`, `strftime_now`, `tojson`, loop controls and the `generation` tag. Runs in the text threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagemill.failures import FailureReason, PagemillError


class TemplateRefused(Exception):
    """The template would not render these messages; the message is the template's own."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012  as the base class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. `bos_token` and `eos_token` are strings, as templates write them into the text."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise PagemillError(
                FailureReason.MODEL_INVALID, f"the model's chat template can't be compiled: {error}"
            ) from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt, with the turn of the assistant opened. Raises TemplateRefused."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=True, tools=None, **self._tokens
            )
        except jinja2.TemplateError as error:
            raise TemplateRefused(str(error) or type(error).__name__) from error
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            # A template is a program of its own: what these messages make it do wrong is told to whoever sent them.
            raise TemplateRefused(f"{type(error).__name__} in the chat template: {error}") from error


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which would show up in prompts."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
