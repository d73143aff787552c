"""From a checked body to requests for the engine: template, tokens, lengths, sampling. Runs in the text threads.

Everything that depends on the model is refused here, with a BadRequest that names the field, before anything is queued.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagemill_server.api.conversation import Turn
from pagemill_server.api.echo import Echo
from pagemill_server.api.protocol import CompletionBody, SamplingFields
from pagemill_server.api.sampling import Asked, refusal
from pagemill_server.api.service import Loaded
from pagemill_server.api.tokens import token_ids
from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.engine.token_ids import unknown_id
from pagemill_server.errors import BadRequest

MAX_PROMPT_LOGPROBS = 4_000_000  # in one response: prompts' tokens times choices times what each shows
_MAX_USER_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from. Filled by `api/endpoint`."""

    arrival: float  # time.monotonic() seconds
    client: str  # by its key or its header; "": neither
    salt: str = ""  # the key's own, over the request's; "": there is no other key
    max_priority: int | None = None  # the lowest number that the key may ask for; None: any

    def cache_salt(self, asked: str | None) -> str:
        """The engine's salt. Hashed, for a client's own word must not spell another key's."""
        if not self.salt:
            return asked or ""
        # A salt comes out of JSON, which can hold half of a surrogate pair.
        spelt = (asked or "").encode("utf-8", "surrogatepass")
        return hashlib.sha256(b"pagemill salt 1\0" + self.salt.encode() + b"\0" + spelt).hexdigest()

    def sender(self, user: str | None) -> str:
        """A user is somebody below the client that sends the name, for a client can name anybody. Short: policies remember it."""
        if not user:
            return self.client
        if len(user) > _MAX_USER_CHARACTERS:
            user = hashlib.sha256(user.encode()).hexdigest()
        return f"{self.client}/{user}" if self.client else user

    def priority(self, asked: int | None) -> int:
        """Raises BadRequest for one that the key may not have; without one it gets the best that is no better than 0."""
        if self.max_priority is None:
            return asked or 0
        if asked is not None and asked < self.max_priority:
            raise BadRequest(
                f"priority is {asked}, and this key may ask for {self.max_priority} at the lowest; lower goes first.",
                param="priority",
                code="priority_not_allowed",
            )
        return max(0, self.max_priority) if asked is None else asked


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, ready for the engine. Filled by `api/chat` and `api/completions`."""

    id: str  # what the response says
    created: int  # Unix seconds
    model: str  # the served name
    requests: tuple[AddRequest, ...]  # one a prompt; choice place * n + index is its sequence `index`
    stream: bool
    include_usage: bool
    logprobs: int | None  # how many likeliest to show beside each token; None: no log-probabilities
    prompt_logprobs: int | None  # the same of the prompts' own tokens
    echoes: tuple[Echo, ...] = ()  # one a prompt, where prompts are said again
    turn: Turn | None = None  # how the text becomes a message; None: it is only text
    running_usage: bool = False  # each chunk says what was used so far
    legacy_calls: bool = False  # a call is said as OpenAI's older `function_call`
    include_reasoning: bool = True  # thoughts are part of the answer


def completion_prompts(loaded: Loaded, body: CompletionBody) -> list[tuple[int, ...]]:
    """The token ids of each prompt; ids that the client sent are taken as they are once the model has them."""
    return [_encode(loaded, p) if isinstance(p, str) else _checked(loaded, p) for p in body.prompts()]


def _encode(loaded: Loaded, prompt: str) -> tuple[int, ...]:
    ids = tuple(token_ids(loaded, prompt, True, "prompt"))
    if not ids:
        raise BadRequest("prompt becomes no token at all.", param="prompt")
    return ids


def _checked(loaded: Loaded, ids: tuple[int, ...]) -> tuple[int, ...]:
    size = loaded.limits.vocab_size
    if (wrong := unknown_id(ids, size)) is not None:
        raise BadRequest(f"Token id {wrong} is not in the model's vocabulary of {size}.", param="prompt")
    return ids


def make_job(
    loaded: Loaded,
    body: SamplingFields,
    model: str,
    prompts: Sequence[tuple[int, ...]],
    sampling: SamplingParams,
    asked: Asked,
    origin: Origin,
    *,
    prefix: str,
    echoes: tuple[Echo, ...] = (),
    turn: Turn | None = None,
) -> Job:
    """`sampling` is for each prompt but for its length: what the client asked for, else the default, else what is left."""
    _check_ends(sampling)
    _check_prompt_logprobs(sum(map(len, prompts)) * sampling.n, body.prompt_logprobs, asked)
    job_id = f"{prefix}-{uuid.uuid4().hex}"
    deadline = None if body.deadline_ms is None else origin.arrival + body.deadline_ms / 1000
    priority = origin.priority(body.priority)
    requests = tuple(
        AddRequest(
            f"{job_id}-{place}",
            prompt,
            _with_length(sampling, _max_tokens(loaded, len(prompt), asked), asked),
            origin.arrival,
            cache_salt=origin.cache_salt(body.cache_salt),
            client=origin.sender(body.user),
            priority=priority,
            deadline=deadline,
        )
        for place, prompt in enumerate(prompts)
    )
    return Job(
        id=job_id,
        created=int(time.time()),
        model=model,
        requests=requests,
        stream=bool(body.stream),
        include_usage=body.wants_usage,
        running_usage=body.wants_running_usage,
        logprobs=asked.logprobs,
        prompt_logprobs=body.prompt_logprobs,
        echoes=echoes,
        turn=turn,
    )


def _max_tokens(loaded: Loaded, prompt: int, asked: Asked) -> int:
    context, defaults = loaded.context, loaded.generating().defaults
    left, bound = context - prompt, defaults.max_new_tokens
    if left < 1:
        raise BadRequest(
            f"The prompt has {prompt} tokens, and this model's context of {context} tokens leaves no room for an answer.",
            param=asked.prompt_name,
            code="context_length_exceeded",
        )
    if asked.max_tokens is None:
        default = defaults.max_tokens if asked.default_max_tokens is None else asked.default_max_tokens
        return min(most for most in (left, bound, default) if most is not None)
    if bound is not None and asked.max_tokens > bound:
        raise BadRequest(
            f"{asked.max_tokens_name} asks for {asked.max_tokens}, and this server gives at most {bound} tokens to an answer.",
            param=asked.max_tokens_name,
            code="invalid_value",
        )
    if asked.max_tokens > left:
        raise BadRequest(
            f"The prompt has {prompt} tokens and {asked.max_tokens_name} asks for {asked.max_tokens}, "
            f"{prompt + asked.max_tokens} in all, but this model's context is {context} tokens; send at most {left}.",
            param=asked.max_tokens_name,
            code="context_length_exceeded",
        )
    return asked.max_tokens


def _with_length(sampling: SamplingParams, max_tokens: int, asked: Asked) -> SamplingParams:
    if sampling.min_tokens > max_tokens:
        trouble = f"is {sampling.min_tokens}, and {max_tokens} tokens are the most that may come"
        raise refusal(InvalidSampling("min_tokens", trouble), asked)
    return replace(sampling, max_tokens=max_tokens)


def _check_ends(sampling: SamplingParams) -> None:
    if sampling.grammar and sampling.ignore_eos:
        raise BadRequest(
            "ignore_eos excludes an answer of a given form: where the form ends, nothing else can come.",
            param="ignore_eos",
            code="invalid_value",
        )


def _check_prompt_logprobs(tokens: int, prompt_logprobs: int | None, asked: Asked) -> None:
    """They come without a step of their own for each, and each choice says them again: a small body could ask for gigabytes."""
    shown = [prompt_logprobs, asked.logprobs if asked.echo else None]
    entries = tokens * sum(count + 1 for count in shown if count is not None)
    if entries > MAX_PROMPT_LOGPROBS:
        raise BadRequest(
            f"The log-probabilities of the prompts' tokens would be {entries} in all; at most {MAX_PROMPT_LOGPROBS} are "
            "said. Ask for fewer beside each token, for fewer choices, or for fewer prompts.",
            param="prompt_logprobs" if prompt_logprobs is not None else "echo",
        )
