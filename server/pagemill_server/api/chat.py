"""POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat. Its JSON, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagemill_server.api.choice import Piece
from pagemill_server.api.inference import Inference
from pagemill_server.api.logprobs import chat_logprobs
from pagemill_server.api.prepare import Job, chat_prompt, make_job
from pagemill_server.api.protocol import parse_chat
from pagemill_server.api.service import Loaded


class ChatCompletions(Inference):
    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], arrival: float) -> Job:
        body = parse_chat(raw)
        model = self.service.name_of(body.model)
        newer = body.max_completion_tokens is not None
        return make_job(
            loaded,
            body,
            model,
            [chat_prompt(loaded, body)],
            arrival,
            prefix="chatcmpl",
            max_tokens=body.max_completion_tokens if newer else body.max_tokens,
            max_tokens_name="max_completion_tokens" if newer else "max_tokens",
            default_max_tokens=None,
            logprobs=body.wanted_logprobs,
        )

    def whole(self, loaded: Loaded, job: Job, answers: Sequence[Piece]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": chat_logprobs(loaded.vocabulary, answer.tokens) if job.logprobs else None,
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
        ]
        return {
            "id": job.id,
            "object": "chat.completion",
            "created": job.created,
            "model": job.model,
            "choices": choices,
        }

    def envelope(self, job: Job) -> dict[str, Any]:
        return {"id": job.id, "object": "chat.completion.chunk", "created": job.created, "model": job.model}

    def opening(self, job: Job) -> list[dict[str, Any]]:
        return [self._chunk(job, 0, {"role": "assistant", "content": ""})]

    def chunks(self, loaded: Loaded, job: Job, index: int, piece: Piece) -> list[dict[str, Any]]:
        """Text in one chunk, the end in another, as OpenAI sends them."""
        made = []
        if piece.text or piece.tokens:
            logprobs = chat_logprobs(loaded.vocabulary, piece.tokens) if job.logprobs else None
            made.append(self._chunk(job, index, {"content": piece.text}, logprobs))
        if piece.finish_reason is not None:
            made.append(self._chunk(job, index, {}, finish_reason=piece.finish_reason))
        return made

    def _chunk(
        self,
        job: Job,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self.envelope(job) | {"choices": [choice]}
