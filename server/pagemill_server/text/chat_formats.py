"""How a model talks: its template, how it writes tool calls and marks reasoning, from its files or as the flags say.

Called by `loading`, once.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import ChatOptions
from pagemill_server.text.detection import reasoning_of, tool_format_of
from pagemill_server.text.reasoning import REASONING_FORMATS, ReasoningFormat
from pagemill_server.text.template import ChatTemplate
from pagemill_server.text.tokenizer import ModelTokenizer
from pagemill_server.text.tool_formats import TOOL_FORMATS
from pagemill_server.text.tools import ToolFormat


@dataclass(frozen=True, slots=True)
class ChatFormats:
    """Each None where there is none, or nobody knows."""

    template: ChatTemplate | None
    tool_format: ToolFormat | None
    reasoning: ReasoningFormat | None


def chat_formats(tokenizer: ModelTokenizer, options: ChatOptions) -> ChatFormats:
    """Raises PagemillError for a template that can't be compiled."""
    template = _template(tokenizer, options)
    return ChatFormats(template, _tool_format(template, options), _reasoning(template, options))


def _template(tokenizer: ModelTokenizer, options: ChatOptions) -> ChatTemplate | None:
    ends = tokenizer.bos_token, tokenizer.eos_token
    if options.chat_template is not None:
        try:
            return ChatTemplate(options.chat_template, *ends)
        except PagemillError as error:
            why = str(error).partition(": ")[2]
            raise PagemillError(
                FailureReason.INVALID_CONFIGURATION, f"--chat-template: it can't be compiled: {why}"
            ) from None
    if not tokenizer.chat_template:
        return None
    return ChatTemplate(tokenizer.chat_template, *ends, tokenizer.tool_template)


def _tool_format(template: ChatTemplate | None, options: ChatOptions) -> ToolFormat | None:
    if template is None or options.tool_call_parser == "none":
        return None
    found = tool_format_of(template.source, template.uses_tools)
    if options.tool_call_parser == "auto" or (found is not None and found.name == options.tool_call_parser):
        return found  # by its own name, too: a format may be written in more than one way
    return TOOL_FORMATS[options.tool_call_parser]


def _reasoning(template: ChatTemplate | None, options: ChatOptions) -> ReasoningFormat | None:
    if template is None or options.reasoning_parser == "none":
        return None
    if options.reasoning_parser == "auto":
        return reasoning_of(template.source)
    return REASONING_FORMATS[options.reasoning_parser]
