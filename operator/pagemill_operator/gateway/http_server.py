"""aiohttp's HTTP/1.1 server with OpenAI's error object for what is not HTTP and for a bug of ours. Used by `door`."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from pagemill_operator.gateway import answers
from pagemill_operator.gateway.errors import BadRequest, Refusal

KEEP_ALIVE_SECONDS = (
    65.0  # longer than the idle timeout of common proxies, so that they close first; a head has as long
)
MOST_HEADER_BYTES = 64 << 10  # of one line, as the server takes

_LOG = logging.getLogger(__name__)


class HttpServer(web.Server):
    """Its connections are ours."""

    def __call__(self) -> RequestHandler:
        return _Connection(
            self,
            loop=self._loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp itself passes None
            auto_decompress=False,  # a body goes on as it came: unpacked, it would no longer be what its headers say
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            max_line_size=MOST_HEADER_BYTES,
            max_field_size=MOST_HEADER_BYTES,
        )


class _Connection(RequestHandler):
    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):  # the client has gone: nobody is left to answer
            raise exc
        if request.writer.output_size > 0:
            _LOG.error("an answer broke off", exc_info=exc)
            raise ConnectionError("the answer has begun: it can only be cut")
        if status >= 500:
            _LOG.error("a request failed", exc_info=exc)
            response = answers.refused(Refusal("The gateway failed to handle this request.", "gateway_failed"))
        else:
            response = answers.refused(BadRequest("The request is not valid HTTP.", "invalid_http"))
        response.force_close()
        return response
