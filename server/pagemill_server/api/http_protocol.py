"""uvicorn's HTTP/1.1 with two things of ours: bad HTTP is answered with OpenAI's error object, and headers have a limit."""

from __future__ import annotations

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pagemill_server.errors import error_object

MAX_HEAD_BYTES = 64 << 10  # request line and headers; the parser itself would take any amount


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            # What comes with the end of the headers may be body, so only reads without that end count.
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        body = orjson.dumps(error_object(message, "invalid_request_error", None, "invalid_http"))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
