"""The engine from Python, without HTTP: `LLM(model).generate(prompts, params)`. Synchronous, on the same engine and loader.

For scripts and tests; imports nothing of the server but how text is made.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagemill import model_ref, model_source
from pagemill_server.api.choice import Choice, Piece
from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.engine.request import AddRequest, FinishReason, SamplingParams
from pagemill_server.lifecycle import Lifecycle
from pagemill_server.loading import download, load
from pagemill_server.settings import Settings

Prompt = str | Sequence[int]


class GenerationFailed(Exception):
    """The engine could not finish a request; the message says why."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One prompt's answer."""

    text: str
    token_ids: tuple[int, ...]  # an EOS included
    finish_reason: FinishReason  # STOP or LENGTH


class LLM:
    """A loaded model. Raises PagemillError when it can't be served here."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        seed: int = 0,
        cache: CacheConfig | None = None,
        scheduler: SchedulerConfig | None = None,
    ) -> None:
        reference = model_ref.parse(model)
        options = ModelOptions(model, (reference.location,), dtype, device, max_model_len, seed)
        settings = Settings(options, cache or CacheConfig(), scheduler or SchedulerConfig(), ServerConfig())
        lifecycle = Lifecycle()
        files = model_source.find(model) or download(model, lifecycle)
        self._model = load(settings, files, lifecycle)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> list[Completion]:
        """One completion a prompt (text or token ids), in their order; they are computed together.

        Raises engine.errors.RequestRefused for a prompt that can't be served, GenerationFailed.
        """
        engine = self._model.engine
        sampling = params or SamplingParams()
        if not ignore_eos:
            ends = (*sampling.stop_token_ids, *self._model.tokenizer.eos_ids)
            sampling = replace(sampling, stop_token_ids=tuple(dict.fromkeys(ends)))
        requests = [
            AddRequest(f"llm-{next(self._ids)}", self._encode(prompt), sampling, time.monotonic())
            for prompt in _as_list(prompts)
        ]
        for request in requests:
            engine.check(request)
        for request in requests:
            engine.add(request)
        answers = {r.request_id: _Answer(Choice(self._model.vocabulary, stop, logprobs=False)) for r in requests}
        while engine.has_work:
            for output in engine.step():
                if output.error is not None:
                    engine.abort_all()
                    raise GenerationFailed(output.error)
                if (answer := answers.get(output.request_id)) is None or answer.finish_reason is not None:
                    continue
                answer.take(answer.choice.feed(output), [token.token_id for token in output.tokens])
                if answer.finish_reason is not None and output.finish_reason is None:
                    engine.abort(output.request_id)
        return [answers[request.request_id].completion() for request in requests]

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        ids = tuple(self._model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if not ids:
            raise ValueError("a prompt has at least one token")
        return ids


class _Answer:
    """Pieces of one prompt's answer, until it is whole."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.finish_reason: FinishReason | None = None
        self._text: list[str] = []
        self._ids: list[int] = []

    def take(self, piece: Piece, ids: list[int]) -> None:
        self._text.append(piece.text)
        self._ids += ids
        self.finish_reason = piece.finish_reason

    def completion(self) -> Completion:
        assert self.finish_reason is not None
        return Completion("".join(self._text), tuple(self._ids), self.finish_reason)


def _as_list(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)
