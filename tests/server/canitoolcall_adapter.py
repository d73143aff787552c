"""Our parsers behind canitoolcall's interface for engines, so that its own runner and checks judge them.

canitoolcall run --engine tests.server.canitoolcall_adapter:PagemillAdapter --family qwen3-hermes --family llama --family mistral

Its strategies cut token ids, and our parsers know none: each character stands for a token here, which cuts more finely than any.
https://pypi.org/project/canitoolcall
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from canitoolcall.adapters.base import Adapter, ReplayInput, Support, ToolSpec
from canitoolcall.results import ParseResult, StreamAccumulator

import pagemill
from pagemill_server.text.message import CallArguments, CallBegins, MessageEvent, MessageParser, Thought, Words
from pagemill_server.text.reasoning import REASONING_FORMATS, reasoning_parser, stand_of, with_reasoning
from pagemill_server.text.tool_formats import TOOL_FORMATS

FAMILIES = ("qwen3-hermes", "llama", "mistral")
_TOOLS = {"qwen3-hermes": "hermes", "llama": "llama3_json", "mistral": "mistral"}
_REASONING = {"qwen3-hermes": "qwen3", "mistral": "mistral"}
_OTHERS = {"mistralai/Magistral-Small-2506": "qwen3"}  # wrote <think> before there was [THINK]


def parser_for(raw: ReplayInput) -> MessageParser:
    calls = TOOL_FORMATS[_TOOLS[raw.family]].parser(())
    name = _OTHERS.get(raw.model, _REASONING.get(raw.family))
    if name is None:
        return calls
    reasoning = REASONING_FORMATS[name]
    return with_reasoning(reasoning_parser(reasoning, stand_of(reasoning, raw.generation_prompt or "")), calls)


class PagemillAdapter(Adapter):
    name = "pagemill"
    pinned_version = pagemill.__version__
    supports_text_deltas = True

    def version(self) -> str:
        return pagemill.__version__

    def supports(self, family: str, model: str) -> Support:
        if family not in FAMILIES or "Llama-4" in model:
            return Support(False, "no parser for this format")
        return Support(True)

    def parser_config(self, raw: ReplayInput) -> dict[str, Any]:
        return {"tool_call_parser": _TOOLS[raw.family], "reasoning_parser": _REASONING.get(raw.family)}

    def units(self, raw: ReplayInput) -> list[int]:
        return [ord(character) for character in raw.text]

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        return self.parse_stream_text(raw, [raw.text], tools)

    def parse_stream(self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]) -> ParseResult:
        return self.parse_stream_text(raw, ["".join(map(chr, chunk)) for chunk in chunks], tools)

    def parse_stream_text(self, raw: ReplayInput, deltas: Sequence[str], tools: Sequence[ToolSpec]) -> ParseResult:
        parser, client = parser_for(raw), StreamAccumulator()
        for delta in deltas:
            _give(client, parser.push(delta))
        _give(client, parser.finish())
        return client.result()


def _give(client: StreamAccumulator, events: Sequence[MessageEvent]) -> None:
    for event in events:
        match event:
            case Words(text):
                client.add_content(text)
            case Thought(text):
                client.add_reasoning(text)
            case CallBegins(index, name):
                client.add_tool_call(index, name)
            case CallArguments(index, text):
                client.add_tool_call(index, arguments=text)
