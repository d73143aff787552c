"""What the engine is asked for and what it answers: the messages that cross `engine/loop`, and the sampling settings.

Frozen dataclasses both ways and no shared object, so that the engine can live in a thread or in a process of its own. Imports
neither torch nor the model. Made by the API (`api/`) and by `LLM`; read by `engine` and `model/sampler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pagemill_server.config import SchedulerConfig


class FinishReason(StrEnum):
    """Why a sequence ended. STOP and LENGTH are OpenAI's words; ABORT and ERROR never reach a client as a success."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """The form of an answer, from Python, as vLLM spells it: one of them is set."""

    json: str | Mapping[str, Any] | None = None  # a JSON schema, or its text
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # Lark or GBNF
    json_object: bool | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the sequences of a request are sampled. Defaults are OpenAI's; validated at the door, trusted here.

    Order: logit_bias, penalties, grammar, min_tokens' mask, temperature, min_p, top_k, top_p. Log-probabilities are of the raw
    distribution.
    """

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # [0, 1]: tokens less likely than this share of the likeliest are out
    frequency_penalty: float = 0.0  # subtracted for each time that a token is in the output
    presence_penalty: float = 0.0  # subtracted once for a token that is in the output
    repetition_penalty: float = 1.0  # > 0: divides (multiplies, below 0) the logit of a token in prompt or output
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, added to its logit
    seed: int | None = None  # None: the engine draws one for the request
    n: int = 1  # sequences of the request: they share the prompt's blocks and differ in what is drawn
    max_tokens: int = 16  # output tokens at most, 0: none; the front end caps it at what max_model_len leaves
    min_tokens: int = 0  # before so many, no stop token id is drawn and the front end looks for no stop string
    stop: tuple[str, ...] = ()  # read by the front end only: it finds them in the text and then aborts the sequence
    stop_token_ids: tuple[int, ...] = ()  # end after one of these (EOS ids included by the front end unless ignore_eos)
    ignore_eos: bool = False  # read by the front end only: the model's EOS ids do not end a sequence
    logprobs: int | None = None  # None: none; k: the sampled token's log-probability and the k most likely
    prompt_logprobs: int | None = None  # the same of each prompt token but the first; such a request reads no cache
    structured_outputs: StructuredOutputsParams | None = None  # read by `LLM` only, which makes `grammar` of it
    grammar: str = ""  # what the output must match, as `text.grammar.compile` writes it; "": anything


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Front end → engine."""

    request_id: str  # unique inside the process: never the client's own id
    prompt_token_ids: tuple[int, ...]  # at least one
    sampling: SamplingParams
    arrival: float  # time.monotonic() seconds
    cache_salt: str = ""  # requests with different salts never share a block
    client: str = ""  # who asks, for policies that are fair between clients: API key, header or `user`
    priority: int = 0  # lower goes first
    deadline: float | None = (
        None  # time.monotonic() seconds by which the first token is due; None: the policy's default
    )
    pooling: bool = False  # an embedding is wanted of the prompt, and no token is sampled


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Front end → engine: the client hung up, or a stop string was found. What is unknown or over is ignored."""

    request_id: str
    index: int | None = None  # one sequence of the request; None: all of them


@dataclass(frozen=True, slots=True)
class SetScheduler:
    """Front end → engine: change what is hot, between two steps. Applied after what was sent before it."""

    config: SchedulerConfig


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token under the model's raw distribution (before temperature, top-k and top-p)."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Runner → engine → front end: one token of one sequence."""

    token_id: int
    logprob: float | None = None  # of token_id; None unless asked for
    top: tuple[TokenLogprob, ...] = ()  # the k most likely, descending
    rank: int | None = None  # of a prompt token, 1 for the most likely; None for a sampled one


class RequestOutput(NamedTuple):
    """Engine → front end: what one step brought for one sequence of a request.

    The one with `finish_reason` set is the sequence's last; the request is over when each of its n sequences had it. A named
    tuple, because each step makes one a sequence.
    """

    request_id: str
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None  # a sentence for the client, with FinishReason.ERROR
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens not computed (prefix cache)
    first_scheduled: float | None = None  # time.monotonic() when it first ran; set on the first output
    index: int = 0  # type: ignore[assignment]  # which sequence of the request, 0 .. n-1
    prompt_logprobs: tuple[
        SampledToken, ...
    ] = ()  # of index 0: of the next prompt tokens, from the second on, in order
    embedding: tuple[float, ...] | None = None  # of a pooling request, with FinishReason.STOP


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Engine → front end, after every step and whenever the engine goes idle or a request leaves: current values, not deltas,
    but for the counters, which count from the start of the process."""

    num_running: int  # sequences
    num_waiting: int  # sequences, preempted ones included
    kv_cache_usage: float  # share of blocks held by sequences, 0..1
    num_blocks: int
    num_preemptions: int  # total
    prompt_tokens: int  # total, computed or cached
    generation_tokens: int  # total
    prefix_cache_queries: int  # total tokens
    prefix_cache_hits: int  # total tokens
    step_tokens: int  # tokens computed by the step that these stats follow; 0 when idle
    last_progress: float  # time.monotonic() of the last step that computed something, or of going idle
    num_added: int = 0  # total sequences that the engine has taken in
    waiting_tokens: int = 0  # tokens of waiting sequences that are to be computed
    queue_seconds: float = 0.0  # estimate: until a request that came now would first run
    num_cached_blocks: int = 0  # held by nobody, kept for a prefix to come
    num_host_blocks: int = 0  # of the host tier; 0: there is none
    host_blocks_used: int = 0
    offloaded_blocks: int = 0  # total, device to host
    fetched_blocks: int = 0  # total, host to device
    host_hits: int = 0  # total tokens of prefix_cache_hits that came from the host tier
    places: int = 0  # sequences that can run at once
