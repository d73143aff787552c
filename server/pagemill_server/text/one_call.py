"""A message of at most one tool call, where the client wants no more: `parallel_tool_calls` false. Pure."""

from __future__ import annotations

from pagemill_server.text.message import CallArguments, CallBegins, MessageEvent, MessageParser


class OneCall:
    """Another parser's events without those of any call but the first."""

    def __init__(self, parser: MessageParser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[MessageEvent]:
        return self._first(self._parser.push(text))

    def finish(self) -> list[MessageEvent]:
        return self._first(self._parser.finish())

    def _first(self, events: list[MessageEvent]) -> list[MessageEvent]:
        return [event for event in events if not isinstance(event, CallBegins | CallArguments) or event.index == 0]
