"""POST /v1/completions: https://platform.openai.com/docs/api-reference/completions. Its JSON, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagemill_server.api.choice import Piece
from pagemill_server.api.inference import Inference
from pagemill_server.api.logprobs import completion_logprobs
from pagemill_server.api.prepare import COMPLETION_MAX_TOKENS, Job, completion_prompts, make_job
from pagemill_server.api.protocol import parse_completion
from pagemill_server.api.service import Loaded


class Completions(Inference):
    """Several prompts make several choices, in the prompts' order."""

    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], arrival: float) -> Job:
        body = parse_completion(raw)
        model = self.service.name_of(body.model)
        return make_job(
            loaded,
            body,
            model,
            completion_prompts(loaded, body),
            arrival,
            prefix="cmpl",
            max_tokens=body.max_tokens,
            max_tokens_name="max_tokens",
            default_max_tokens=COMPLETION_MAX_TOKENS,
            logprobs=body.logprobs,
        )

    def whole(self, loaded: Loaded, job: Job, answers: Sequence[Piece]) -> dict[str, Any]:
        choices = [self._choice(loaded, job, index, answer) for index, answer in enumerate(answers)]
        return self.envelope(job) | {"choices": choices}

    def envelope(self, job: Job) -> dict[str, Any]:
        return {"id": job.id, "object": "text_completion", "created": job.created, "model": job.model}

    def opening(self, job: Job) -> list[dict[str, Any]]:
        return []

    def chunks(self, loaded: Loaded, job: Job, index: int, piece: Piece) -> list[dict[str, Any]]:
        if not (piece.text or piece.tokens or piece.finish_reason):
            return []
        return [self.envelope(job) | {"choices": [self._choice(loaded, job, index, piece)]}]

    def _choice(self, loaded: Loaded, job: Job, index: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": index,
            "text": piece.text,
            "logprobs": completion_logprobs(loaded.vocabulary, piece.tokens) if job.logprobs else None,
            "finish_reason": piece.finish_reason,
        }
