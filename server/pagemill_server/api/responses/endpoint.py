"""POST /v1/responses, whole and as events, and what the routes beside it say of a server that stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pagemill_server.api.choice import Piece
from pagemill_server.api.conversation import turn_of
from pagemill_server.api.generation import Chunk, Generation
from pagemill_server.api.prepare import Job, Origin, make_job
from pagemill_server.api.record import Record
from pagemill_server.api.reply import Reply
from pagemill_server.api.responses.body import ResponseBody, parse_response
from pagemill_server.api.responses.conversation import conversation_of
from pagemill_server.api.responses.reply import ResponseReply
from pagemill_server.api.responses.resource import ResponseJob, response_job
from pagemill_server.api.sampling import Asked, sampling_of
from pagemill_server.api.service import Loaded
from pagemill_server.errors import ApiError, NotFound


class Responses(Generation):
    """The stream ends with the response's own last event: OpenAI sends no [DONE] here."""

    last_event = b""

    def prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> Job:
        body = parse_response(raw)
        model = self.service.name_of(body.model)
        asked = _asked(body)
        sampling = sampling_of(loaded, body, asked)
        turn = turn_of(loaded, conversation_of(loaded, body))
        sampling = replace(sampling, grammar=turn.grammar)
        job = make_job(loaded, body, model, [turn.prompt], sampling, asked, origin, prefix="resp", turn=turn)
        return response_job(job, body)

    def reply_to(self, loaded: Loaded, job: Job, record: Record) -> Reply:
        assert isinstance(job, ResponseJob)
        return ResponseReply(loaded.generating().vocabulary, job, record)

    def whole(self, reply: Reply, answers: Sequence[Piece]) -> dict[str, Any]:
        made = _ours(reply)
        made.take(answers[0])
        return made.response()

    def beginning(self, reply: Reply) -> Sequence[Chunk]:
        return _ours(reply).begin()

    def opening(self, reply: Reply, index: int) -> Sequence[Chunk]:
        return ()

    def chunks(self, reply: Reply, index: int, piece: Piece) -> Sequence[Chunk]:
        return _ours(reply).take(piece)

    def closing(self, reply: Reply) -> Sequence[Chunk]:
        return _ours(reply).end()

    def failed(self, reply: Reply, error: ApiError) -> Sequence[Chunk]:
        return _ours(reply).fail(error)

    def event(self, chunk: Chunk) -> bytes:
        return f"event: {chunk['type']}\n".encode() + super().event(chunk)


def _ours(reply: Reply) -> ResponseReply:
    assert isinstance(reply, ResponseReply)
    return reply


def _asked(body: ResponseBody) -> Asked:
    return Asked(
        prompt_name="input",
        max_tokens=body.max_output_tokens,
        max_tokens_name="max_output_tokens",
        default_max_tokens=None,
        logprobs=body.logprobs,
        logprobs_name="top_logprobs",
    )


async def not_stored(request: Request) -> Response:
    """What others do with a response that was: get, delete and cancel it, list its input."""
    raise NotFound(
        f"There is no response {request.path_params['id'][:100]}: this server stores none. Send all that the model shall know "
        "in input.",
        param="response_id",
        code="response_not_found",
    )
