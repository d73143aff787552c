"""One HTTP request while it is answered: its job and its choices, by index. On the event loop, made by `api/generation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagemill_server.api.choice import Choice, ShownToken
from pagemill_server.api.prepare import Job
from pagemill_server.api.record import Record
from pagemill_server.api.speech import Speech
from pagemill_server.engine.request import AddRequest, SampledToken
from pagemill_server.text.detokenizer import TokenBytes


class Reply:
    """Choice place * n + index is sequence `index` of the prompt at `place`."""

    def __init__(self, vocabulary: TokenBytes, job: Job, record: Record | None = None) -> None:
        self.vocabulary = vocabulary
        self.record = record or Record()
        self.job = job
        self._n = job.requests[0].sampling.n
        self.choices = [self._choice(place, r) for place, r in enumerate(job.requests) for _ in range(r.sampling.n)]
        self.speeches = [
            Speech(job.turn, legacy=job.legacy_calls, reasoning=job.include_reasoning) for _ in self.choices
        ]

    def choices_of(self, place: int) -> list[Choice]:
        """Of one prompt, by the sequences' indices."""
        return self.choices[place * self._n : (place + 1) * self._n]

    def prompt_logprobs(self, index: int) -> list[SampledToken]:
        """Of the prompt that the choice goes on from, complete when the choice has its first token: they came for its neighbour."""
        return self.choices[index - index % self._n].prompt_logprobs

    def echo_text(self, index: int) -> str:
        """What stands before the choice's text."""
        return self.job.echoes[index // self._n].text if self.job.echoes else ""

    def echo_tokens(self, index: int) -> list[ShownToken]:
        return self.job.echoes[index // self._n].tokens(self.prompt_logprobs(index)) if self.job.echoes else []

    @property
    def completion_tokens(self) -> int:
        """So far."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Of the prompts."""
        return sum(choice.num_cached_tokens for choice in self.choices[:: self._n])

    @property
    def reasoning_tokens(self) -> int | None:
        """So far, of `completion_tokens`; None of a model that doesn't think."""
        if self.job.turn is None or self.job.turn.thinking is None:
            return None
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object: each prompt once, and what its first sequence found in the cache; every choice's tokens."""
        prompt = sum(len(request.prompt_token_ids) for request in self.job.requests)
        completion, cached = self.completion_tokens, self.cached_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if (reasoning := self.reasoning_tokens) is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage

    def _choice(self, place: int, request: AddRequest) -> Choice:
        echoes, turn = self.job.echoes, self.job.turn
        return Choice(
            self.vocabulary,
            request.sampling.stop,
            request.sampling.logprobs is not None,
            min_tokens=request.sampling.min_tokens,
            offset=len(echoes[place].text) if echoes else 0,
            # Evaluations read the prompt's tokens by their number from the list's end: it has one for every token of usage.
            shows_stop=bool(echoes),
            shown=() if turn is None else turn.shown,
            thinking=None if turn is None or turn.thinking is None else turn.thinking(),
        )


def inner_usage(reply: Reply) -> dict[str, Any]:
    """Chunks before the last say what was used so far, where that was asked for; else, where usage comes at the end, null."""
    if reply.job.running_usage:
        return {"usage": reply.usage()}
    return {"usage": None} if reply.job.include_usage else {}


def usage_chunk(reply: Reply, envelope: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The last chunk, without choices, where it was asked for."""
    return [dict(envelope) | {"choices": [], "usage": reply.usage()}] if reply.job.include_usage else []
