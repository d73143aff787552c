"""POST /v1/embeddings: https://platform.openai.com/docs/api-reference/embeddings. A vector of each text, in their order.

Every text is a request of its own to the engine; all of them are queued or none, and the first that fails fails the call.
"""

from __future__ import annotations

import base64
import math
import sys
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pagemill_server.api.body import parse_object
from pagemill_server.api.embedding_body import normalized, parse_embedding, size_of, texts_of
from pagemill_server.api.endpoint import Call, Endpoint
from pagemill_server.api.generate import check_ended
from pagemill_server.api.prepare import Origin
from pagemill_server.api.record import Record
from pagemill_server.api.service import Loaded
from pagemill_server.engine.errors import EngineDead, RequestRefused
from pagemill_server.engine.ports import OutputStream
from pagemill_server.engine.request import AddRequest, FinishReason, SamplingParams
from pagemill_server.errors import BadRequest
from pagemill_server.request_timer import RequestTimer

Vector = Sequence[float]

_NOTHING_SAMPLED = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """One HTTP request, ready for the engine. Made in a text thread."""

    id: str
    model: str  # the served name
    requests: tuple[AddRequest, ...]  # one a text
    size: int  # numbers of each vector
    normalize: bool  # what was cut, or never was normalised
    base64: bool  # instead of JSON's numbers

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)


class Embeddings(Endpoint):
    async def answer(self, loaded: Loaded, call: Call) -> None:
        job = await self.service.in_text_thread(lambda: self._prepare(loaded, parse_object(call.body), call.origin))
        call.log(id=job.id, model=job.model, texts=len(job.requests), prompt_tokens=job.prompt_tokens)
        self.service.check_queue(loaded, len(job.requests), job.prompt_tokens)
        call.visit.reserve(job.prompt_tokens)
        vectors = await self._run(loaded, job, call.record)
        # Two thousand vectors are megabytes of JSON.
        await call.respond(await self.service.in_text_thread(lambda: orjson.dumps(_body(job, vectors))))

    def _prepare(self, loaded: Loaded, raw: Mapping[str, Any], origin: Origin) -> EmbeddingJob:
        body = parse_embedding(raw)
        model, config = self.service.name_of(body.model), loaded.embedding_as()
        size, normalize = size_of(config, body.dimensions), normalized(config, body)
        job_id = f"embd-{uuid.uuid4().hex}"
        deadline = None if body.deadline_ms is None else origin.arrival + body.deadline_ms / 1000
        requests = tuple(
            AddRequest(
                f"{job_id}-{place}",
                text,
                _NOTHING_SAMPLED,
                origin.arrival,
                cache_salt=origin.cache_salt(body.cache_salt),
                client=origin.sender(body.user),
                priority=origin.priority(body.priority),
                deadline=deadline,
                pooling=True,
            )
            for place, text in enumerate(texts_of(loaded, config, body))
        )
        anew = normalize and (size < config.size or not config.normalize)
        return EmbeddingJob(job_id, model, requests, size, normalize=anew, base64=body.encoding_format == "base64")

    async def _run(self, loaded: Loaded, job: EmbeddingJob, record: Record) -> list[Vector]:
        """The engine's vectors. Leaving early, in any way, takes back what is still queued."""
        streams: list[OutputStream] = []
        timers = [RequestTimer(self.service.metrics, request, times=record.times) for request in job.requests]
        try:
            for request in job.requests:
                streams.append(loaded.engine.submit(request))
            return [await self._vector(stream, timer) for stream, timer in zip(streams, timers, strict=True)]
        except RequestRefused as refusal:
            raise BadRequest(str(refusal), param="input") from None
        except EngineDead as dead:
            raise self.service.refused_by(dead) from None
        finally:
            for stream, timer in zip(streams, timers, strict=False):
                await stream.aclose()
                timer.abandon()

    async def _vector(self, stream: OutputStream, timer: RequestTimer) -> Vector:
        async for output in stream:
            timer.output(output)
            check_ended(self.service, timer, output)
            if output.embedding is not None:
                timer.finish(0, FinishReason.STOP)
                return array("f", output.embedding)  # an eighth of a tuple's memory
        raise AssertionError("a text ends with its vector or an error")


def _body(job: EmbeddingJob, vectors: Sequence[Vector]) -> dict[str, Any]:
    usage = {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens}
    data = [
        {"object": "embedding", "index": place, "embedding": _spelled(job, vector)}
        for place, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": job.model, "usage": usage}


def _spelled(job: EmbeddingJob, vector: Vector) -> list[float] | str:
    cut = vector[: job.size]
    if job.normalize and (length := math.hypot(*cut)):
        cut = [number / length for number in cut]
    return _in_base64(cut) if job.base64 else list(cut)


def _in_base64(vector: Vector) -> str:
    """float32, little endian."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
