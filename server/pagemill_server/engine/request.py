"""What the engine is asked for and what it answers: the messages that cross `engine/loop`, and the sampling settings.

Frozen dataclasses both ways and no shared object, so that the engine can live in a thread or in a process of its own. Imports
neither torch nor the model. Made by the API (`api/`) and by `LLM`; read by `engine` and `model/sampler`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended. STOP and LENGTH are OpenAI's words; ABORT and ERROR never reach a client as a success."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence is sampled. Defaults are OpenAI's; validated at the door (`api/protocol`), trusted here."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0: all
    seed: int | None = None  # None: the engine draws one for the request
    max_tokens: int = 16  # output tokens at most; the front end caps it at what max_model_len leaves
    stop_token_ids: tuple[int, ...] = ()  # end after one of these (EOS ids included by the front end unless ignore_eos)
    logprobs: int | None = None  # None: none; k: the sampled token's log-probability and the k most likely


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Front end → engine. Stop strings are not here: the front end finds them in the text and then aborts."""

    request_id: str  # unique inside the process: never the client's own id
    prompt_token_ids: tuple[int, ...]  # at least one
    sampling: SamplingParams
    arrival: float  # time.monotonic() seconds


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Front end → engine: the client hung up, or a stop string was found. Unknown ids are ignored."""

    request_id: str


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


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Engine → front end: what one step brought for one request. The one with `finish_reason` set is the last."""

    request_id: str
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None  # a sentence for the client, with FinishReason.ERROR
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens not computed (prefix cache)
    first_scheduled: float | None = None  # time.monotonic() when it first ran; set on the first output


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
