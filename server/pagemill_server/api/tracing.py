"""Spans of requests for an OpenTelemetry collector (OTLP over HTTP): one a request, with its queue, prefill and decode below it.

Made when the answer is over, from its record: a request that runs carries nothing. A thread of the SDK's own sends them in
batches; a collector that is slow or away costs spans, never a request. Imported by `serve` only where there is a collector, for the
SDK takes its time to import. Attributes: HTTP's and generative AI's semantic conventions, times as vLLM spells them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from pagemill import __version__
from pagemill_server.api.record import CLIENT_GONE, Record

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # that the last spans have to leave when the server ends
_EXPORT_SECONDS = 5.0  # that a collector has for a batch
_BATCH_SECONDS = 1.0  # that spans wait for company
_WARN_EVERY = 60.0  # seconds

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


class RequestTraces:
    """One a process. Implements `access_log.Traces`."""

    def __init__(self, endpoint: str) -> None:
        exporter = _Exporter(OTLPSpanExporter(endpoint, timeout=_EXPORT_SECONDS))
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=_BATCH_SECONDS * 1000)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("pagemill", __version__)
        self._propagator = TraceContextTextMapPropagator()
        # What the SDK says of a collector that is away is a traceback or a line a batch; `_Exporter` says it once in a while.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)

    def add(self, record: Record, scope: Scope) -> None:
        span = self._tracer.start_span(
            record.method if record.route is None else f"{record.method} {record.route}",
            self._parent(scope),
            SpanKind.SERVER,
            _attributes(record),
            start_time=record.started_unix_ns,
        )
        if _is_our_failure(record):
            span.set_status(Status(StatusCode.ERROR, record.outcome))
        below = trace.set_span_in_context(span)
        for name, begin, end in _stages(record):
            self._tracer.start_span(name, below, start_time=_unix_ns(record, begin)).end(_unix_ns(record, end))
        span.end(_unix_ns(record, record.ended))

    def _parent(self, scope: Scope) -> Context:
        """The caller's span, by `traceparent`. Not its `tracestate`, which may hold any words."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"]
        return self._propagator.extract({"traceparent": given[0]} if len(given) == 1 else {}, Context())

    async def close(self) -> None:
        """The last spans leave, if they can in `FLUSH_SECONDS`."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="traces", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closed.wait(), FLUSH_SECONDS)


class _Exporter(SpanExporter):
    """Sends batches; says in one line, at most once in `_WARN_EVERY` seconds, that they are lost."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0
        self._warn_from = 0.0  # time.monotonic() seconds

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if time.monotonic() >= self._warn_from:
                logger.warning("the collector of --otlp-traces-endpoint takes no traces: %d spans lost", self._lost)
                self._warn_from = time.monotonic() + _WARN_EVERY
                self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _resource() -> Resource:
    """Who we are, unless the standard environment variables say it."""
    said = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({SERVICE_VERSION: __version__} | ({} if said else {SERVICE_NAME: "pagemill"}))


def _attributes(record: Record) -> Attributes:
    fields, times = record.fields, record.times
    said: dict[str, str | int | float | bool | Sequence[str] | None] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "error.type": None if record.outcome == "ok" else record.outcome,
        "pagemill.request_id": record.request_id,
        "pagemill.key": record.key,
        "gen_ai.operation.name": _OPERATIONS.get(record.route or ""),
        "gen_ai.request.model": fields.get("model"),
        "gen_ai.response.model": fields.get("model"),
        "gen_ai.response.id": fields.get("id"),
        "gen_ai.response.finish_reasons": record.finish_reasons or None,
        "gen_ai.usage.input_tokens": fields.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": fields.get("completion_tokens"),
        "gen_ai.usage.cache_read.input_tokens": fields.get("cached_tokens"),
        "gen_ai.latency.time_in_queue": _since(record, times.scheduled),
        "gen_ai.latency.time_to_first_token": _since(record, times.first),
        "gen_ai.latency.e2e": record.ended - record.started,
        "pagemill.prompt": record.prompt,
        "pagemill.output": record.outputs or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _since(record: Record, moment: float | None) -> float | None:
    return None if moment is None else max(0.0, moment - record.started)


def _is_our_failure(record: Record) -> bool:
    """A client's mistake is none, nor that it has gone; an error in the middle of a stream, whose status was 200, is."""
    if record.failure == CLIENT_GONE:
        return False
    return record.status is None or record.status >= 500 or (record.status == 200 and record.outcome != "ok")


def _stages(record: Record) -> list[tuple[str, float, float]]:
    """(name, begin, end) of what is known of the way through the engine."""
    times, stages = record.times, []
    scheduled = max(record.started, times.scheduled) if times.scheduled is not None else times.first
    if scheduled is None:
        return []
    stages.append(("queue", record.started, scheduled))
    if times.first is not None:
        stages.append(("prefill", scheduled, times.first))
        if times.last is not None and times.last > times.first:
            stages.append(("decode", times.first, times.last))
    return stages


def _unix_ns(record: Record, moment: float) -> int:
    return record.started_unix_ns + int((moment - record.started) * 1e9)
