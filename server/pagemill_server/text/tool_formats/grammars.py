"""What the formats' grammars share: arguments by a tool's schema, and a call as a JSON object."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from pagemill_server.text import grammar
from pagemill_server.text.grammar import Grammar
from pagemill_server.text.tools import Tool


def arguments(tool: Tool) -> Grammar:
    """An object that the tool's schema accepts; any, where it has none."""
    return grammar.json_schema(tool.parameters) if tool.parameters else grammar.json_object()


def call_object(tools: Sequence[Tool], key: str) -> Grammar:
    """`{"name": …, key: {…}}` of one of them."""
    return grammar.one_of(
        *(
            grammar.sequence(
                grammar.literal(f'{{"name": {json.dumps(tool.name)}, "{key}": '),
                arguments(tool),
                grammar.literal("}"),
            )
            for tool in tools
        )
    )


def words_or_marked(marker: str, begun: Grammar) -> Grammar:
    """Words, and where the marker is among them, what must come after it."""
    return grammar.one_of(grammar.text_without(marker), grammar.sequence(grammar.text_until(marker), begun))


def random_id() -> str:
    """As OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"
