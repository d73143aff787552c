"""One response while it is made: its text through the parser, its items, and the events with their numbers. On the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pagemill_server.api.choice import Piece
from pagemill_server.api.logprobs import chat_logprobs
from pagemill_server.api.record import Record
from pagemill_server.api.reply import Reply
from pagemill_server.api.responses import resource
from pagemill_server.api.responses.output import Event, Output
from pagemill_server.api.responses.resource import ResponseJob
from pagemill_server.api.responses.words import SaidWords
from pagemill_server.engine.request import FinishReason
from pagemill_server.errors import ApiError
from pagemill_server.text.detokenizer import TokenBytes


class ResponseReply(Reply):
    """Of one sequence: a response has no choices."""

    job: ResponseJob

    def __init__(self, vocabulary: TokenBytes, job: ResponseJob, record: Record | None = None) -> None:
        super().__init__(vocabulary, job, record)
        assert job.turn is not None
        self._said = SaidWords(job.turn.parser and job.turn.parser(), logprobs=job.logprobs is not None)
        self._output = Output(job.turn.call_id)
        self._cut = False
        self._sent = 0  # events

    def begin(self) -> Sequence[Event]:
        response = resource.in_progress(self.job)
        return self._numbered({"type": f"response.{name}", "response": response} for name in ("created", "in_progress"))

    def take(self, piece: Piece) -> Sequence[Event]:
        made: list[Event] = []
        for event, tokens in self._said.push(piece):
            logprobs = chat_logprobs(self.vocabulary, tokens)["content"] if tokens else []
            made += self._output.take(event, logprobs)
        if piece.finish_reason is not None:
            self._cut = piece.finish_reason is FinishReason.LENGTH
            made += self._output.end(cut=self._cut)
        return self._numbered(made)

    def response(self) -> dict[str, Any]:
        """Once all is taken."""
        usage = resource.usage_of(self.usage())
        return resource.finished(self.job, self._output.values(), usage, cut=self._cut)

    def end(self) -> Sequence[Event]:
        response = self.response()
        return self._numbered([{"type": f"response.{response['status']}", "response": response}])

    def fail(self, error: ApiError) -> Sequence[Event]:
        """Official clients raise at an event with an `error`; others wait for the response to end."""
        self._output.end(cut=True)
        response = resource.failed(self.job, self._output.values(), error)
        of = error.body()["error"]
        flat = {name: of[name] for name in ("code", "message", "param")}
        events = [{"type": "error", **flat, "error": of}, {"type": "response.failed", "response": response}]
        return self._numbered(events)

    def _numbered(self, events: Iterable[Event]) -> list[Event]:
        made = [event | {"sequence_number": number} for number, event in enumerate(events, start=self._sent)]
        self._sent += len(made)
        return made
