"""What the gateway itself answers instead of a replica, as exceptions; `answers` turns each into OpenAI's error object.

Refusal
├── BadRequest      400  not HTTP that could be passed on
├── Unauthorized    401  no key or a wrong one
├── BodyTimeout     408  the client stopped sending in the middle of its body
├── BodyTooLarge    413
├── ReplicaFailed   502  the replica ended before it answered
└── Unavailable     503  comes with Retry-After

They say what the server would (`pagemill_server.errors`): a client can't tell who refused it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

RETRY_AFTER_SECONDS = 5


class Refusal(Exception):
    """`code` is a word for programs; `headers` go out with the answer."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    outcome: ClassVar[str] = "refused"  # as `metrics` counts it

    def __init__(self, message: str, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return error_object(self.message, self.type, self.code)


class BadRequest(Refusal):
    status = 400
    type = "invalid_request_error"


class Unauthorized(Refusal):
    status = 401
    type = "invalid_request_error"


class BodyTimeout(Refusal):
    status = 408
    type = "invalid_request_error"


class BodyTooLarge(Refusal):
    status = 413
    type = "invalid_request_error"


class ReplicaFailed(Refusal):
    status = 502
    outcome = "failed"


class Unavailable(Refusal):
    status = 503
    type = "service_unavailable"
    outcome = "unavailable"

    def __init__(self, message: str, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, code, {"Retry-After": str(RETRY_AFTER_SECONDS), **(headers or {})})


def error_object(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """https://platform.openai.com/docs/api-reference: every error has these four keys."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
