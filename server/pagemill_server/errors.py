"""What the HTTP side can answer other than a success, as exceptions; `api/app` turns each into OpenAI's error object.

ApiError
├── BadRequest          400  anything that is wrong in what the client sent
├── Unauthorized        401  no key or a wrong one
├── NotFound            404  model or route
├── MethodNotAllowed    405
├── RequestTimeout      408  the client stopped sending in the middle of its body
├── Conflict            409  not as things stand (management port)
├── BodyTooLarge        413
├── EngineFailed        500  the engine could not finish a request; never the client's doing
└── TryAgain                 comes with Retry-After
    ├── TooManyRequests 429  as much waits as may, or a key's limit is reached
    └── Unavailable     503  loading, draining or stopping
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

RETRY_AFTER_SECONDS = 5


class ApiError(Exception):
    """`param` names the field at fault, `code` is a word for programs (https://platform.openai.com/docs/guides/error-codes)."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return error_object(self.message, self.type, self.param, self.code)


class BadRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    status = 401
    type = "invalid_request_error"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"


class Conflict(ApiError):
    status = 409
    type = "invalid_request_error"


class RequestTimeout(ApiError):
    status = 408
    type = "invalid_request_error"


class BodyTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"


class TryAgain(ApiError):
    """The same request may do later: always with Retry-After, the default's where nobody knows better."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        later = {"retry-after": str(RETRY_AFTER_SECONDS)}
        super().__init__(message, param=param, code=code, headers=later | dict(headers or {}))


class TooManyRequests(TryAgain):
    status = 429
    type = "rate_limit_error"


class EngineFailed(ApiError):
    status = 500
    type = "server_error"


class Unavailable(TryAgain):
    status = 503
    type = "service_unavailable"


def error_object(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """https://platform.openai.com/docs/api-reference: every error has these four keys."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
