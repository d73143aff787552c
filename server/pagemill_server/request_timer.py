"""What one request's outputs say about time and tokens, sequence by sequence. Used by `api/generate`, on the event loop.

Lengths of answers and times are of each sequence, as vLLM counts them, for each has its own last token; what the request asked
for, and its prompt, are counted once. What was aborted or failed is counted and would only blur the others' times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pagemill import metrics as names
from pagemill_server.engine.engine import NOT_FINITE
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput
from pagemill_server.metrics import Metrics


@dataclass(slots=True)
class Times:
    """Of all sequences that answer one HTTP request; time.monotonic() seconds. Filled by their timers."""

    scheduled: float | None = None  # the first of them ran
    first: float | None = None  # the first token of any
    last: float | None = None  # the newest


@dataclass(slots=True)
class _Sequence:
    scheduled: float | None = None
    first: float | None = None  # the first token's time
    last: float = 0.0
    tokens: int = 0


class RequestTimer:
    """Feed it every output, and end each sequence with `finish`, or what is left of them with `abandon`."""

    def __init__(
        self,
        metrics: Metrics,
        request: AddRequest,
        clock: Callable[[], float] = time.monotonic,
        times: Times | None = None,
    ) -> None:
        self._observe = metrics.observe
        self._metrics = metrics
        self._request = request
        self._clock = clock
        self._times = times or Times()
        self._sequences = [_Sequence() for _ in range(request.sampling.n)]
        self._open = set(range(request.sampling.n))
        self._answered = False  # some sequence ended well
        self._longest = 0  # tokens of those
        self._cached = 0  # tokens of the prompt: of the first sequence, the others have it from that one

    def output(self, output: RequestOutput) -> None:
        sequence = self._sequences[output.index]
        if output.first_scheduled is not None and sequence.scheduled is None:
            sequence.scheduled = output.first_scheduled
            if self._times.scheduled is None or output.first_scheduled < self._times.scheduled:
                self._times.scheduled = output.first_scheduled
        if output.index == 0:
            self._cached = max(self._cached, output.num_cached_tokens)
        if output.error == NOT_FINITE:
            self._metrics.count_corrupted()
        if output.tokens and output.index in self._open:
            self._tokens(sequence, len(output.tokens))
        if output.embedding is not None:
            sequence.last = self._times.last = self._clock()

    def _tokens(self, sequence: _Sequence, count: int) -> None:
        now = self._clock()
        if sequence.first is None:
            sequence.first = now
            self._observe(names.TIME_TO_FIRST_TOKEN, now - self._request.arrival)
        else:
            self._observe(names.INTER_TOKEN_LATENCY, now - sequence.last)
            self._observe(names.INTER_TOKEN_LATENCY_OLD, now - sequence.last)
        sequence.last = self._times.last = now
        self._times.first = now if self._times.first is None else self._times.first
        sequence.tokens += count

    def finish(self, index: int, reason: FinishReason) -> None:
        """One sequence ended; a second time it is ignored."""
        if index not in self._open:
            return
        self._open.discard(index)
        self._metrics.count_finished(reason)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._answered = True
            self._observe_sequence(self._sequences[index])
        if not self._open and self._answered:
            self._observe_request()

    def abandon(self) -> None:
        """What is still open was cut short."""
        for index in tuple(self._open):
            self.finish(index, FinishReason.ABORT)

    def _observe_sequence(self, sequence: _Sequence) -> None:
        observe, arrival, first = self._observe, self._request.arrival, sequence.first
        if first is None:  # no token was asked for
            if sequence.last:
                self._observe_embedding(sequence)
            return
        self._longest = max(self._longest, sequence.tokens)
        scheduled = first if sequence.scheduled is None else sequence.scheduled
        observe(names.E2E_LATENCY, sequence.last - arrival)
        observe(names.QUEUE_TIME, max(0.0, scheduled - arrival))
        observe(names.PREFILL_TIME, first - scheduled)
        observe(names.DECODE_TIME, sequence.last - first)
        observe(names.INFERENCE_TIME, sequence.last - scheduled)
        if sequence.tokens > 1:
            observe(names.REQUEST_TIME_PER_OUTPUT_TOKEN, (sequence.last - first) / (sequence.tokens - 1))
        observe(names.REQUEST_GENERATION_TOKENS, sequence.tokens)

    def _observe_embedding(self, sequence: _Sequence) -> None:
        scheduled = sequence.last if sequence.scheduled is None else sequence.scheduled
        self._observe(names.E2E_LATENCY, sequence.last - self._request.arrival)
        self._observe(names.QUEUE_TIME, max(0.0, scheduled - self._request.arrival))
        self._observe(names.INFERENCE_TIME, sequence.last - scheduled)

    def _observe_request(self) -> None:
        observe, prompt = self._observe, len(self._request.prompt_token_ids)
        observe(names.REQUEST_PROMPT_TOKENS, prompt)
        observe(names.REQUEST_PREFILL_COMPUTED_TOKENS, prompt - self._cached)
        if self._request.pooling:
            return
        observe(names.REQUEST_MAX_GENERATION_TOKENS, self._longest)
        observe(names.REQUEST_MAX_TOKENS, self._request.sampling.max_tokens)
        observe(names.REQUEST_N, self._request.sampling.n)
