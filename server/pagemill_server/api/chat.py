"""POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat. Its JSON, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagemill_server.api.choice import Piece
from pagemill_server.api.generation import Chunk, Generation
from pagemill_server.api.logprobs import chat_logprobs, prompt_logprobs
from pagemill_server.api.prepare import Job, Origin, chat_prompt, make_job
from pagemill_server.api.protocol import ChatBody, parse_chat
from pagemill_server.api.reply import Reply, unused_usage, usage_chunk
from pagemill_server.api.sampling import Asked, sampling_of
from pagemill_server.api.service import Loaded


class ChatCompletions(Generation):
    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> Job:
        body = parse_chat(raw)
        model = self.service.name_of(body.model)
        asked = _asked(body)
        sampling = sampling_of(loaded, body, asked)
        prompts = [chat_prompt(loaded, body)]
        return make_job(loaded, body, model, prompts, sampling, asked, origin, prefix="chatcmpl")

    def whole(self, reply: Reply, answers: Sequence[Piece]) -> dict[str, Any]:
        job = reply.job
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": _logprobs(reply, answer),
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
        ]
        whole = _envelope(job) | {"object": "chat.completion", "choices": choices, "usage": reply.usage()}
        if job.prompt_logprobs is not None:
            of_prompt = prompt_logprobs(reply.vocabulary, reply.prompt_logprobs(0), job.prompt_logprobs)
            whole["prompt_logprobs"] = of_prompt
        return whole

    def opening(self, reply: Reply, index: int) -> Sequence[Chunk]:
        return [self._chunk(reply.job, index, {"role": "assistant", "content": ""})]

    def chunks(self, reply: Reply, index: int, piece: Piece) -> Sequence[Chunk]:
        """Text in one chunk, the end in another, as OpenAI sends them."""
        made = []
        if piece.text or piece.tokens:
            made.append(self._chunk(reply.job, index, {"content": piece.text}, _logprobs(reply, piece)))
        if piece.finish_reason is not None:
            made.append(self._chunk(reply.job, index, {}, finish_reason=piece.finish_reason))
        return made

    def _chunk(
        self,
        job: Job,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return _envelope(job) | {"choices": [choice]} | unused_usage(job)

    def closing(self, reply: Reply) -> Sequence[Chunk]:
        return usage_chunk(reply, _envelope(reply.job))


def _envelope(job: Job) -> dict[str, Any]:
    return {"id": job.id, "object": "chat.completion.chunk", "created": job.created, "model": job.model}


def _asked(body: ChatBody) -> Asked:
    newer = body.max_completion_tokens is not None
    return Asked(
        prompt_name="messages",
        max_tokens=body.max_completion_tokens if newer else body.max_tokens,
        max_tokens_name="max_completion_tokens" if newer else "max_tokens",
        default_max_tokens=None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        logprobs_name="top_logprobs",
    )


def _logprobs(reply: Reply, piece: Piece) -> dict[str, Any] | None:
    return None if reply.job.logprobs is None else chat_logprobs(reply.vocabulary, piece.tokens)
