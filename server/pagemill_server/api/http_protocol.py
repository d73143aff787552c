"""uvicorn's HTTP/1.1 with what it lacks: OpenAI's error object for bad HTTP, limits of size and time for headers, no upgrades, and
an end to a client that reads nothing.
"""

from __future__ import annotations

import asyncio
import re

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pagemill_server.api import access_log, request_id
from pagemill_server.api.record import Record
from pagemill_server.errors import error_object

MAX_HEAD_BYTES = 64 << 10  # request line and headers; the parser itself would take any amount
MAX_PIPELINED = 16  # requests read ahead of the one that is answered
HEAD_SECONDS = 60.0  # for a request's head to come whole, and for a new connection to say anything
READ_SECONDS = (
    60.0  # in which a client reads some of an answer that waits for it; else a drain could wait for it for ever
)

_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0
    _in_head = True  # or between two requests
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None
    _deaf = False  # what still comes is dropped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._forget_reader()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True  # uvicorn tells the newest of the pipeline only
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        if self._in_head:
            # What comes with the end of the headers may be body, so only reads without that end count.
            self._head_bytes += len(data)
            self._expect_head()
            data = _without_upgrade(data)
        super().data_received(data)
        self._listen_on()
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._forget_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _listen_on(self) -> None:
        """uvicorn stops reading when a request comes before the one ahead of it is answered, and would not see the client go."""
        if 0 < len(self.pipeline) < MAX_PIPELINED and len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._no_head)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expect_reader(self) -> None:
        self._forget_reader()
        left = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(READ_SECONDS, self._look_at_reader, left)

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _look_at_reader(self, before: int) -> None:
        """`before`: bytes that waited for it when it was last looked at."""
        if self.transport.get_write_buffer_size() < before:
            self._expect_reader()
        else:
            self.transport.abort()

    def _no_head(self) -> None:
        if self.transport.is_closing():
            return
        if self._head_bytes:
            self._refuse(408, f"The request's headers did not come whole within {HEAD_SECONDS:g} seconds.")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        if (answering := self._answering) is not None and _has_all(answering):
            self._stop_listening(answering)
            return
        record = Record(request_id.new_id(), status=status, failure="invalid_http")
        record.ended = record.started
        body = orjson.dumps(error_object(message, "invalid_request_error", None, record.failure))
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\n",
            b"%s: %s\r\n" % (request_id.HEADER, record.request_id.encode()),
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.close()
        access_log.log(record)

    def _stop_listening(self, answering: RequestResponseCycle) -> None:
        """What came behind a request is no HTTP: its answer is finished, undisturbed, and is the connection's last."""
        self._deaf = True
        self._forget_head()
        answering.keep_alive = False


def _has_all(cycle: RequestResponseCycle) -> bool:
    """Its answer is on its way and needs nothing that still comes."""
    return not cycle.response_complete and (cycle.response_started or not cycle.more_body)


def _without_upgrade(data: bytes) -> bytes:
    """The same without the header by which Java's HTTP client offers HTTP/2 with every request (`Upgrade: h2c`).

    A server may ignore it (RFC 9110, 7.8), but the parser would take what follows for the other protocol and lose the body. Clients
    send their headers at once; one that is cut within this header's name gets the parser's way.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade", head) + end + rest
