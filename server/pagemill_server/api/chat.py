"""POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat. Its JSON, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagemill_server.api.chat_conversation import conversation_of
from pagemill_server.api.choice import Piece, ShownToken
from pagemill_server.api.conversation import turn_of
from pagemill_server.api.generation import Chunk, Generation
from pagemill_server.api.logprobs import chat_logprobs, prompt_logprobs
from pagemill_server.api.prepare import Job, Origin, make_job
from pagemill_server.api.protocol import ChatBody, parse_chat
from pagemill_server.api.reply import Reply, inner_usage, usage_chunk
from pagemill_server.api.sampling import Asked, sampling_of
from pagemill_server.api.service import Loaded
from pagemill_server.api.speech import message_of
from pagemill_server.engine.request import FinishReason


class ChatCompletions(Generation):
    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> Job:
        body = parse_chat(raw)
        model = self.service.name_of(body.model)
        asked = _asked(body)
        sampling = sampling_of(loaded, body, asked)
        turn = turn_of(loaded, conversation_of(loaded, body))
        sampling = replace(sampling, grammar=turn.grammar)
        job = make_job(loaded, body, model, [turn.prompt], sampling, asked, origin, prefix="chatcmpl", turn=turn)
        return replace(job, legacy_calls=bool(body.functions), include_reasoning=body.include_reasoning is not False)

    def whole(self, reply: Reply, answers: Sequence[Piece]) -> dict[str, Any]:
        job = reply.job
        choices = [self._whole(reply, index, answer) for index, answer in enumerate(answers)]
        whole = _envelope(job) | {"object": "chat.completion", "choices": choices, "usage": reply.usage()}
        if job.prompt_logprobs is not None:
            of_prompt = prompt_logprobs(reply.vocabulary, reply.prompt_logprobs(0), job.prompt_logprobs)
            whole["prompt_logprobs"] = of_prompt
        return whole

    def _whole(self, reply: Reply, index: int, answer: Piece) -> dict[str, Any]:
        deltas = [delta for delta, _ in reply.speeches[index].deltas(answer)]
        thinks = reply.reasoning_tokens is not None and reply.job.include_reasoning
        return {
            "index": index,
            "message": message_of(deltas, thinks=thinks),
            "logprobs": _logprobs(reply, answer.tokens),
            "finish_reason": _finish_reason(reply, index, answer),
        }

    def opening(self, reply: Reply, index: int) -> Sequence[Chunk]:
        return [self._chunk(reply, index, {"role": "assistant", "content": ""})]

    def chunks(self, reply: Reply, index: int, piece: Piece) -> Sequence[Chunk]:
        """Each delta in a chunk, the end in one of its own, as OpenAI sends them."""
        made = [
            self._chunk(reply, index, delta, _logprobs(reply, tokens) if tokens else None)
            for delta, tokens in reply.speeches[index].deltas(piece)
        ]
        if piece.finish_reason is not None:
            made.append(self._chunk(reply, index, {}, finish_reason=_finish_reason(reply, index, piece)))
        return made

    def _chunk(
        self,
        reply: Reply,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return _envelope(reply.job) | {"choices": [choice]} | inner_usage(reply)

    def closing(self, reply: Reply) -> Sequence[Chunk]:
        return usage_chunk(reply, _envelope(reply.job))


def _finish_reason(reply: Reply, index: int, piece: Piece) -> str | None:
    """An answer with calls waits for their results; one that was cut off may lack half of a call."""
    if piece.finish_reason is FinishReason.STOP and reply.speeches[index].called:
        return "function_call" if reply.job.legacy_calls else "tool_calls"
    return piece.finish_reason


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


def _logprobs(reply: Reply, tokens: Sequence[ShownToken]) -> dict[str, Any] | None:
    return None if reply.job.logprobs is None else chat_logprobs(reply.vocabulary, tokens)
