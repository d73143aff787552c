"""POST /v1/completions: https://platform.openai.com/docs/api-reference/completions. Its JSON, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagemill_server.api.choice import Piece, ShownToken
from pagemill_server.api.echo import Echo, echo_of
from pagemill_server.api.generation import Chunk, Generation
from pagemill_server.api.logprobs import completion_logprobs, prompt_logprobs
from pagemill_server.api.prepare import Job, Origin, completion_prompts, make_job
from pagemill_server.api.protocol import CompletionBody, parse_completion
from pagemill_server.api.reply import Reply, inner_usage, usage_chunk
from pagemill_server.api.sampling import Asked, sampling_of
from pagemill_server.api.service import Loaded
from pagemill_server.api.structured import compiled, output_of

_MAX_TOKENS = 16  # OpenAI's default


class Completions(Generation):
    """Several prompts make several choices, in the prompts' order, n of each."""

    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> Job:
        body = parse_completion(raw)
        model = self.service.name_of(body.model)
        asked = _asked(body)
        sampling = sampling_of(loaded, body, asked)
        sampling = replace(sampling, grammar=compiled(loaded, output_of(body)))
        prompts = completion_prompts(loaded, body)
        echoes = _echoes(loaded, body, prompts)
        return make_job(loaded, body, model, prompts, sampling, asked, origin, prefix="cmpl", echoes=echoes)

    def whole(self, reply: Reply, answers: Sequence[Piece]) -> dict[str, Any]:
        choices = [self._whole(reply, index, answer) for index, answer in enumerate(answers)]
        return _envelope(reply.job) | {"choices": choices, "usage": reply.usage()}

    def opening(self, reply: Reply, index: int) -> Sequence[Chunk]:
        """The prompt, where it is said again."""
        if not reply.job.echoes:
            return []
        return [self._chunk(reply, index, Piece(reply.echo_text(index), tuple(reply.echo_tokens(index))))]

    def closing(self, reply: Reply) -> Sequence[Chunk]:
        return usage_chunk(reply, _envelope(reply.job))

    def chunks(self, reply: Reply, index: int, piece: Piece) -> Sequence[Chunk]:
        return [self._chunk(reply, index, piece)] if piece.text or piece.tokens or piece.finish_reason else []

    def _chunk(self, reply: Reply, index: int, piece: Piece) -> Chunk:
        choice = _choice(reply, index, piece.text, piece.tokens, piece)
        return _envelope(reply.job) | {"choices": [choice]} | inner_usage(reply)

    def _whole(self, reply: Reply, index: int, answer: Piece) -> dict[str, Any]:
        text, tokens = reply.echo_text(index) + answer.text, (*reply.echo_tokens(index), *answer.tokens)
        choice, count = _choice(reply, index, text, tokens, answer), reply.job.prompt_logprobs
        if count is not None:
            choice["prompt_logprobs"] = prompt_logprobs(reply.vocabulary, reply.prompt_logprobs(index), count)
        return choice


def _envelope(job: Job) -> dict[str, Any]:
    return {"id": job.id, "object": "text_completion", "created": job.created, "model": job.model}


def _choice(reply: Reply, index: int, text: str, tokens: Sequence[ShownToken], piece: Piece) -> dict[str, Any]:
    count = reply.job.logprobs
    return {
        "index": index,
        "text": text,
        "logprobs": None if count is None else completion_logprobs(reply.vocabulary, tokens, count),
        "finish_reason": piece.finish_reason,
    }


def _asked(body: CompletionBody) -> Asked:
    return Asked(
        prompt_name="prompt",
        max_tokens=body.max_tokens,
        max_tokens_name="max_tokens",
        default_max_tokens=_MAX_TOKENS,
        logprobs=body.logprobs,
        logprobs_name="logprobs",
        echo=bool(body.echo),
    )


def _echoes(loaded: Loaded, body: CompletionBody, prompts: Sequence[tuple[int, ...]]) -> tuple[Echo, ...]:
    if not body.echo:
        return ()
    vocabulary = loaded.generating().vocabulary
    sent = zip(prompts, body.prompts(), strict=True)
    return tuple(echo_of(vocabulary, ids, text if isinstance(text, str) else None) for ids, text in sent)
