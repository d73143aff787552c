"""The bodies of POST /v1/chat/completions and /v1/completions, checked at the door: types, unknown keys, what excludes what.

`parse_chat` and `parse_completion` raise BadRequest that names the field. The bounds of sampling settings are those of
`engine/params`, and what depends on the model (lengths, vocabulary) is checked by `api/prepare`. Strict: "1" is no number and
true is no integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pagemill_server.api import neutral
from pagemill_server.api.effort import Effort
from pagemill_server.api.messages import Message, check_messages
from pagemill_server.api.strict_body import Body as Body
from pagemill_server.api.strict_body import validated as validated
from pagemill_server.api.structured import OutputFields
from pagemill_server.api.tool_fields import FunctionBody, ToolBody
from pagemill_server.errors import BadRequest

MAX_PROMPTS = 256
MAX_MESSAGES = 10_000  # each costs a template some work, however short
MAX_CHOICES = 512  # prompts times n
MAX_SALT_CHARACTERS = 1024
MAX_DEADLINE_MS = 86_400_000


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stops = Annotated[list[str] | None, BeforeValidator(_as_list, json_schema_input_type=str | list[str] | None)]


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None  # usage so far in every chunk


class SamplingFields(Body):
    """What both endpoints have. None: not sent, or null."""

    model: str | None = None
    # Sampling; bounds in `engine/params`.
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # -1 and 0: all
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None  # by token id in digits
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Stops = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    # For the scheduler.
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None  # lower goes first
    deadline_ms: Annotated[float, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None  # to the first token, from arrival on
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    user: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Taken and not needed: they ask for nothing that a server without accounts could do.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


class ChatBody(SamplingFields, OutputFields):
    model: str
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # Tools; `api/tool_fields` reads what is a choice.
    tools: list[ToolBody] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionBody] | None = None  # OpenAI's older tools
    function_call: Any = None
    # What the chat template is told.
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    include_reasoning: bool | None = None  # false: thoughts are left out of the answer


class CompletionBody(SamplingFields, OutputFields):
    prompt: Any  # checked by `prompts`: pydantic's unions are slow and vague on a hundred thousand ids
    logprobs: int | None = None
    echo: bool | None = None

    def prompts(self) -> list[str | tuple[int, ...]]:
        """Text or token ids, one a choice. Raises BadRequest."""
        value = self.prompt
        if isinstance(value, str) or (isinstance(value, list) and value and all(type(item) is int for item in value)):
            value = [value]
        if not isinstance(value, list) or not value:
            raise _bad_prompt("prompt must be a string, a list of token ids, or a list of these, and not empty.")
        if len(value) > MAX_PROMPTS:
            raise _bad_prompt(f"prompt holds {len(value)} prompts; at most {MAX_PROMPTS} are taken in one request.")
        return [_prompt(item) for item in value]


def _prompt(item: Any) -> str | tuple[int, ...]:
    if isinstance(item, str) and item:
        return item
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return tuple(item)
    if item in ("", []):
        raise _bad_prompt("prompt is empty; a prompt has at least one token.")
    raise _bad_prompt("prompt must be a string, a list of token ids, or a list of these.")


def _bad_prompt(message: str) -> BadRequest:
    return BadRequest(message, param="prompt")


def parse_chat(raw: Mapping[str, Any]) -> ChatBody:
    """Raises BadRequest."""
    body = neutral.without_neutral(_without_best_of(raw), neutral.CHAT)
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = [
            neutral.without_neutral(message, neutral.MESSAGE, f"messages[{place}].")
            if isinstance(message, dict)
            else message
            for place, message in enumerate(messages)
        ]
    chat = validated(ChatBody, body)
    _check_stream(chat)
    if chat.top_logprobs and not chat.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if None not in (both := {chat.max_tokens, chat.max_completion_tokens}) and len(both) == 2:
        raise BadRequest("max_tokens and max_completion_tokens differ; send one of them.", param="max_tokens")
    if 0 in (chat.max_tokens, chat.max_completion_tokens):
        name = "max_completion_tokens" if chat.max_completion_tokens == 0 else "max_tokens"
        raise BadRequest(f"{name} must be at least 1.", param=name, code="invalid_value")
    check_messages(chat.messages)
    if chat.functions and chat.tools:
        raise BadRequest("functions and tools are two words for the same; send one of them.", param="functions")
    if chat.function_call is not None and (chat.tools or chat.tool_choice is not None):
        raise BadRequest("function_call belongs to functions; with tools it is tool_choice.", param="function_call")
    return chat


def parse_completion(raw: Mapping[str, Any]) -> CompletionBody:
    """Raises BadRequest."""
    completion = validated(CompletionBody, neutral.without_neutral(_without_best_of(raw), neutral.COMPLETIONS))
    _check_stream(completion)
    if completion.max_tokens == 0 and not completion.echo:
        raise BadRequest("max_tokens must be at least 1, or 0 with echo.", param="max_tokens", code="invalid_value")
    choices = len(completion.prompts()) * (completion.n or 1)
    if choices > MAX_CHOICES:
        raise BadRequest(f"n times the prompts is {choices}; at most {MAX_CHOICES} choices are made.", param="n")
    return completion


def _without_best_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The best of n, out of n, are all of them."""
    best_of = raw.get("best_of")
    if isinstance(best_of, int) and not isinstance(best_of, bool) and best_of == (raw.get("n") or 1):
        return {key: value for key, value in raw.items() if key != "best_of"}
    return raw


def _check_stream(body: SamplingFields) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise BadRequest("prompt_logprobs are not available when stream is true.", param="prompt_logprobs")
