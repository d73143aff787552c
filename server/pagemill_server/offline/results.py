"""What `LLM` gives back, in the shapes and by the names that vLLM's users know. Filled by `offline/collect`."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_server.engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's natural-log probability under the model's raw distribution."""

    logprob: float
    rank: int | None  # 1: the most likely; None: not among the likeliest that were asked for
    decoded_token: str


TokenLogprobs = dict[int, Logprob]  # by token id: the token itself, and the likeliest


@dataclass(frozen=True, slots=True)
class Completion:
    """One of a prompt's n answers."""

    index: int
    text: str  # up to a stop string, without it
    token_ids: tuple[int, ...]  # an EOS, and the tokens of a stop string, included
    finish_reason: FinishReason  # "stop" or "length"
    logprobs: list[TokenLogprobs] | None  # one a token id; None unless asked for
    cumulative_logprob: float | None  # their sum


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """One prompt's answers."""

    prompt: str | None  # None where token ids were given
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: list[TokenLogprobs | None] | None  # one a prompt token, None for the first; None unless asked for
    outputs: tuple[Completion, ...]  # n, by index
    num_cached_tokens: int  # of the prompt, that the prefix cache brought


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text's vector."""

    embedding: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """One text's vector and what it was made of."""

    prompt_token_ids: tuple[int, ...]
    outputs: Embedding
