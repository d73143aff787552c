"""From a checked body to requests for the engine: template, tokens, lengths, sampling. Runs in the text threads.

Everything that depends on the model is refused here, with a BadRequest that names the field, before anything is queued.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from pagemill_server.api.protocol import ChatBody, CompletionBody, SamplingFields
from pagemill_server.api.service import Loaded
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.errors import BadRequest
from pagemill_server.text.template import TemplateRefused

COMPLETION_MAX_TOKENS = 16  # OpenAI's default of /v1/completions


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, ready for the engine: one AddRequest a choice. Filled by `api/chat` and `api/completions`."""

    id: str  # what the response says
    created: int  # Unix seconds
    model: str  # the served name
    requests: tuple[AddRequest, ...]
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool

    @property
    def logprobs(self) -> bool:
        return self.requests[0].sampling.logprobs is not None


def chat_prompt(loaded: Loaded, body: ChatBody) -> tuple[int, ...]:
    """The token ids of a conversation, the assistant's turn opened."""
    if loaded.template is None:
        raise BadRequest(
            "The model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
        )
    try:
        text = loaded.template.render([message.for_template() for message in body.messages])
    except TemplateRefused as refusal:
        raise BadRequest(str(refusal), param="messages", code="chat_template_error") from None
    ids = tuple(loaded.tokenizer.encode(text, False))  # the template has written the special tokens itself
    if not ids:
        raise BadRequest("The chat template made an empty prompt of these messages.", param="messages")
    return ids


def completion_prompts(loaded: Loaded, body: CompletionBody) -> list[tuple[int, ...]]:
    """The token ids of each prompt; ids that the client sent are taken as they are once the model has them."""
    return [_encode(loaded, p) if isinstance(p, str) else _checked(loaded, p) for p in body.prompts()]


def _encode(loaded: Loaded, prompt: str) -> tuple[int, ...]:
    ids = tuple(loaded.tokenizer.encode(prompt, True))
    if not ids:
        raise BadRequest("prompt becomes no token at all.", param="prompt")
    return ids


def _checked(loaded: Loaded, ids: tuple[int, ...]) -> tuple[int, ...]:
    size = loaded.limits.vocab_size
    if min(ids) < 0 or max(ids) >= size:
        wrong = next(token for token in ids if not 0 <= token < size)
        raise BadRequest(f"Token id {wrong} is not in the model's vocabulary of {size}.", param="prompt")
    return ids


def make_job(
    loaded: Loaded,
    body: SamplingFields,
    model: str,
    prompts: list[tuple[int, ...]],
    arrival: float,
    *,
    prefix: str,
    max_tokens: int | None,
    max_tokens_name: str,
    default_max_tokens: int | None,
    logprobs: int | None,
) -> Job:
    """`max_tokens` is what the client asked for; without it the default, or what the context leaves."""
    job_id = f"{prefix}-{uuid.uuid4().hex}"
    requests = []
    for place, prompt in enumerate(prompts):
        most = _max_tokens(loaded.context, len(prompt), max_tokens, max_tokens_name, default_max_tokens)
        sampling = SamplingParams(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            seed=body.seed,
            max_tokens=most,
            stop_token_ids=() if body.ignore_eos else loaded.eos_token_ids,
            logprobs=logprobs,
        )
        requests.append(AddRequest(f"{job_id}-{place}", prompt, sampling, arrival))
    return Job(
        job_id,
        int(time.time()),
        model,
        tuple(requests),
        tuple(body.stop or ()),
        bool(body.stream),
        body.wants_usage,
    )


def _max_tokens(context: int, prompt: int, asked: int | None, name: str, default: int | None) -> int:
    left = context - prompt
    if left < 1:
        raise BadRequest(
            f"The prompt has {prompt} tokens, and this model's context of {context} tokens leaves no room for an answer.",
            param="prompt" if default is not None else "messages",
            code="context_length_exceeded",
        )
    if asked is None:
        return left if default is None else min(default, left)
    if asked > left:
        raise BadRequest(
            f"The prompt has {prompt} tokens and {name} asks for {asked}, {prompt + asked} in all, but this model's "
            f"context is {context} tokens; send at most {left}.",
            param=name,
            code="context_length_exceeded",
        )
    return asked
