"""Where chat templates run: Jinja's sandbox with what Hugging Face gives to templates, and an end to time and size.

https://huggingface.co/docs/transformers/chat_templating documents the environment: trimmed blocks, `raise_exception`,
`strftime_now`, `tojson`, loop controls and the `generation` tag. Used by `template` only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 5.0  # of computing; the longest conversations take tenths
MAX_CHARACTERS = 32 << 20  # of a prompt, or of a text that is multiplied on the way


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012  as the base class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A template is the model's, its messages are anybody's: no rendering takes more than it is given."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._here = threading.local()  # one rendering a thread

    def render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """The text. Raises whatever the template does, and TemplateRuntimeError when it takes too much."""
        parts, size = [], 0
        with self._limited():
            for part in template.generate(variables):
                self._check_time()
                parts.append(part)
                size += len(part)
                if size > MAX_CHARACTERS:
                    raise jinja2.TemplateRuntimeError(f"the prompt is longer than {MAX_CHARACTERS} characters")
        return "".join(parts)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._check_time()
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _size(operator, left, right) > MAX_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"{operator} makes more than {MAX_CHARACTERS} of something")
        return super().call_binop(context, operator, left, right)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        # The thread's own time: a busy machine makes no conversation too long.
        self._here.until = time.thread_time() + MAX_SECONDS
        try:
            yield
        finally:
            del self._here.until

    def _check_time(self) -> None:
        if time.thread_time() > getattr(self._here, "until", float("inf")):
            raise jinja2.TemplateRuntimeError(f"it takes more than {MAX_SECONDS:g} s")


def _size(operator: str, left: Any, right: Any) -> int:
    """Of what an operation makes: characters, entries, or bits of a number."""
    if operator == "**":
        return left.bit_length() * abs(right) if isinstance(left, int) and isinstance(right, int) else 0
    many, times = (right, left) if isinstance(left, int) else (left, right)
    return len(many) * times if isinstance(times, int) and hasattr(many, "__len__") else 0


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which would show up in prompts."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
