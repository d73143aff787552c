"""What is known of one HTTP request, for its log line and its span: numbers and names of ours; a client's text only on request.

Made by `api/access_log` at the door, filled by whoever answers, on the event loop; read when the answer is over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Scope

from pagemill_server.request_timer import Times

MAX_CONTENT = 16_384  # characters of a prompt, and of all of an answer's choices together, that --log-content keeps
CLIENT_GONE = "client_gone"

_RECORD = "pagemill.record"  # in the ASGI scope
_PROMPTS = ("messages", "prompt", "input")  # where bodies have what is asked


@dataclass(slots=True)
class Record:
    """`started` is time.monotonic() seconds."""

    request_id: str = ""  # of X-Request-Id
    method: str = ""
    route: str | None = (
        None  # as the router spells it; None: there is no such route, and the path is a client's own words
    )
    keeps_content: bool = False
    started: float = field(default_factory=time.monotonic)
    started_unix_ns: int = field(default_factory=time.time_ns)
    ended: float = 0.0  # as `started`
    status: int | None = None  # None: nobody was left to answer
    failure: str = ""  # an error's code, or that the client has gone
    key: str | None = None  # the API key's name
    fields: dict[str, Any] = field(default_factory=dict)  # what the endpoint says of it: counts, and names of ours
    times: Times = field(default_factory=Times)
    prompt: str | None = None  # only where content is kept, and cut
    _reasons: dict[int, str] = field(default_factory=dict)  # of the choices that ended, by index
    _texts: dict[int, str] = field(default_factory=dict)
    _room: int = MAX_CONTENT

    @property
    def outcome(self) -> str:
        """ "ok", or why not."""
        if self.failure:
            return self.failure
        return "ok" if self.status is not None and self.status < 400 else f"http_{self.status}"

    @property
    def finish_reasons(self) -> list[str]:
        return [self._reasons[index] for index in sorted(self._reasons)]

    @property
    def outputs(self) -> list[str] | None:
        """What the choices said, cut; None where content isn't kept."""
        return [self._texts[index] for index in sorted(self._texts)] if self.keeps_content else None

    def piece(self, index: int, text: str, finish_reason: str | None) -> None:
        """More of a choice."""
        if finish_reason is not None:
            self._reasons[index] = str(finish_reason)
        if self.keeps_content:
            kept = text[: self._room]
            self._room -= len(kept)
            self._texts[index] = self._texts.get(index, "") + kept


def record_of(scope: Scope) -> Record:
    record = scope.setdefault(_RECORD, Record())
    assert isinstance(record, Record)
    return record


def begin_record(scope: Scope, record: Record) -> None:
    scope[_RECORD] = record


def prompt_of(body: bytes) -> str | None:
    """What a body asks about, as text, cut; None where it has nothing of the kind."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    found = [parsed[name] for name in _PROMPTS if name in parsed] if isinstance(parsed, dict) else []
    if not found:
        return None
    if isinstance(found[0], str):
        return found[0][:MAX_CONTENT]
    try:
        return orjson.dumps(found[0]).decode()[:MAX_CONTENT]
    except (
        orjson.JSONEncodeError
    ):  # what it reads may be nested deeper than what it writes; the request will be refused
        return body[:MAX_CONTENT].decode(errors="replace")
