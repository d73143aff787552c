"""A conversation, whichever endpoint it came through: checked, rendered and tokenised, with what its answer must look like.

`api/chat` and `api/responses` translate their bodies to a `Conversation`; `turn_of` makes of it the prompt, the grammar of what is
forced (schema, tool call) and the parser of what comes out. In the text threads; raises BadRequest that names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pagemill_server.api.forced import after_thoughts, forced_grammar
from pagemill_server.api.service import Generator, Loaded
from pagemill_server.api.thinking import ThinkingMeter
from pagemill_server.api.tokens import token_ids
from pagemill_server.errors import BadRequest
from pagemill_server.text import grammar
from pagemill_server.text.grammar import Grammar, InvalidGrammar
from pagemill_server.text.message import MessageParser
from pagemill_server.text.one_call import OneCall
from pagemill_server.text.reasoning import ReasoningFormat, Stand, reasoning_parser, stand_of, with_reasoning
from pagemill_server.text.template import TemplateRefused
from pagemill_server.text.tool_messages import messages_with_tools
from pagemill_server.text.tools import Tool

if TYPE_CHECKING:
    from pagemill_server.text.tokenizer import ModelTokenizer


Thinking = tuple[ReasoningFormat, Stand]  # how a model marks its reasoning, and where the prompt leaves it


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    name: str = ""  # of the tool, with "named"
    parallel: bool = True  # more than one call in one answer


@dataclass(frozen=True, slots=True)
class Conversation:
    """What both endpoints mean. Filled by them; `where` is how errors spell the messages' field."""

    messages: Sequence[
        Mapping[str, Any]
    ]  # as chat templates take them: role, content and, where there are any, tool_calls …
    where: str = "messages"  # "input" of /v1/responses
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice("none")
    output: Grammar | None = None  # what the answer's words must match: response_format or structured_outputs
    output_where: str = "response_format"  # how errors spell its field
    template_kwargs: Mapping[str, Any] = field(
        default_factory=dict
    )  # enable_thinking and whatever else the template reads
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's turn, ready. `parser` makes one for each choice."""

    prompt: tuple[int, ...]  # token ids
    grammar: str  # compiled; "": anything
    parser: Callable[[], MessageParser] | None  # None: all of the text is words
    shown: frozenset[int]  # special tokens that must come out as text, because the parser reads them
    call_id: Callable[[], str]  # a new id for a tool call
    thinking: Callable[[], ThinkingMeter] | None = None  # counts a choice's reasoning; None: the model has none


def turn_of(loaded: Loaded, conversation: Conversation) -> Turn:
    """Raises BadRequest."""
    generator = loaded.generating()
    tools = _tools(generator, conversation)
    text = _rendered(generator, conversation, tools)
    prompt = tuple(token_ids(loaded, text, conversation.add_special_tokens, conversation.where))
    if not prompt:
        raise BadRequest("The chat template made an empty prompt of these messages.", param=conversation.where)
    thinks = _thinks(generator, conversation, text)
    return Turn(
        prompt,
        _grammar(generator, conversation, tools, thinks),
        _parser(generator, conversation, tools, thinks),
        _shown(loaded.tokenizer, generator, tools),
        (lambda: "") if generator.tool_format is None else generator.tool_format.call_id,
        None if thinks is None else partial(ThinkingMeter, *thinks),
    )


def _tools(generator: Generator, conversation: Conversation) -> Sequence[Tool]:
    """Those that the model is shown. Where it may call none it is shown none."""
    if conversation.tool_choice.mode == "none" or not conversation.tools:
        return ()
    if generator.tool_format is None:
        raise BadRequest(
            "This server can't read this model's tool calls; send tool_choice none, or start it with --tool-call-parser.",
            param="tools",
            code="tools_not_supported",
        )
    return conversation.tools


def _rendered(generator: Generator, conversation: Conversation, tools: Sequence[Tool]) -> str:
    """The prompt's text."""
    template = generator.template
    if template is None:
        raise BadRequest(
            "The model has no chat template; use /v1/completions.", param=conversation.where, code="no_chat_template"
        )
    messages = conversation.messages
    if not template.uses_tools:
        messages = messages_with_tools(messages, tools, takes_system=template.takes_system)
    try:
        template.check_variables(conversation.template_kwargs)
    except TemplateRefused as refused:
        raise BadRequest(str(refused), param="chat_template_kwargs", code="invalid_value") from None
    try:
        return template.render(
            messages,
            tools=[tool.spec for tool in tools] or None,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            **conversation.template_kwargs,
        )
    except TemplateRefused as refused:
        raise BadRequest(str(refused), param=conversation.where, code="chat_template_error") from None


def _thinks(generator: Generator, conversation: Conversation, text: str) -> Thinking | None:
    """An answer that is gone on with has its thoughts behind it, unless they are what is gone on with."""
    if generator.reasoning is None:
        return None
    last = conversation.messages[-1].get("content") if conversation.continue_final_message else None
    stand = stand_of(generator.reasoning, text, last or "")
    return generator.reasoning, "closed" if last and stand == "untouched" else stand


def _parser(
    generator: Generator,
    conversation: Conversation,
    tools: Sequence[Tool],
    thinks: Thinking | None,
) -> Callable[[], MessageParser] | None:
    form, parallel = generator.tool_format, conversation.tool_choice.parallel

    def calls() -> MessageParser | None:
        if form is None or not tools:
            return None
        return form.parser(tools) if parallel else OneCall(form.parser(tools))

    def parser() -> MessageParser:
        made = calls()
        if thinks is not None:
            return with_reasoning(reasoning_parser(*thinks), made)
        assert made is not None
        return made

    return parser if tools or thinks is not None else None


def _grammar(
    generator: Generator,
    conversation: Conversation,
    tools: Sequence[Tool],
    thinks: Thinking | None,
) -> str:
    """Compiled, or refused with the name of the field that asked for it."""
    try:
        answer = forced_grammar(generator.tool_format, tools, conversation.tool_choice, conversation.output)
        if answer is None:
            return ""
        text = grammar.compile(answer if thinks is None else after_thoughts(answer, *thinks))
        generator.grammars.check(text)
    except InvalidGrammar as refused:
        param = "tools" if tools else conversation.output_where
        raise BadRequest(f"{param} can't be enforced: {refused}", param=param, code="invalid_grammar") from None
    return text


def _shown(tokenizer: ModelTokenizer, generator: Generator, tools: Sequence[Tool]) -> frozenset[int]:
    """The markers that are tokens of their own; a special token would have no text."""
    markers = [
        *(generator.reasoning.markers if generator.reasoning is not None else ()),
        *(generator.tool_format.markers if generator.tool_format is not None and tools else ()),
    ]
    ids = (tokenizer.backend.token_to_id(marker) for marker in markers)
    return frozenset(token_id for token_id in ids if token_id is not None)
