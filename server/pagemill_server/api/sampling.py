"""From a body's fields to SamplingParams: what was sent, else the model's default; within the bounds of `engine/params`.

Errors say the field as the client spelled it. Called by `api/chat` and `api/completions` before a prompt is tokenised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagemill_server.api.protocol import SamplingFields
from pagemill_server.api.service import Loaded
from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.engine.params import MOST_TOKENS, validated
from pagemill_server.engine.request import SamplingParams
from pagemill_server.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """What the endpoints spell or decide each in its own way. Filled by them."""

    prompt_name: str
    max_tokens: int | None  # None: not sent
    max_tokens_name: str
    default_max_tokens: int | None  # None: what the context leaves
    logprobs: int | None  # how many likeliest beside each token; None: no log-probabilities
    logprobs_name: str
    echo: bool = False  # with log-probabilities, the prompt's tokens have them too


def sampling_of(loaded: Loaded, body: SamplingFields, asked: Asked) -> SamplingParams:
    """Without `max_tokens` the most there can be: `prepare` sets it by each prompt. Raises BadRequest."""
    of_prompt = [n for n in (body.prompt_logprobs, asked.logprobs if asked.echo else None) if n is not None]
    given = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "repetition_penalty": body.repetition_penalty,
        "logit_bias": body.logit_bias,
        "seed": body.seed,
        "n": body.n,
        "max_tokens": MOST_TOKENS if asked.max_tokens is None else asked.max_tokens,
        "min_tokens": body.min_tokens,
        "stop": body.stop,
        "stop_token_ids": body.stop_token_ids,
        "ignore_eos": body.ignore_eos,
        "logprobs": asked.logprobs,
        "prompt_logprobs": max(of_prompt, default=None),  # each is cut to what it asked for when it is shown
    }
    defaults = loaded.generating().defaults.sampling()
    sent = defaults | {name: value for name, value in given.items() if value is not None}
    try:
        params = validated(SamplingParams(**sent), loaded.limits.vocab_size)
    except InvalidSampling as error:
        raise refusal(error, asked) from None
    ends = () if params.ignore_eos else loaded.generating().eos_token_ids
    return replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *ends))))


def refusal(error: InvalidSampling, asked: Asked) -> BadRequest:
    """The same in the client's words."""
    spelled = {"max_tokens": asked.max_tokens_name, "logprobs": asked.logprobs_name}.get(error.field, error.field)
    return BadRequest(f"{spelled} {error.trouble}.", param=spelled, code="invalid_value")
