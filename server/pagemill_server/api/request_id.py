"""The id by which a client, a gateway and our log speak of one request: `X-Request-Id`, theirs where it is fit, else one of ours.

It goes back on every response and stands in the access log and in traces. It is never an id of the engine's: two clients may
send the same one at once.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

HEADER = b"x-request-id"
MAX_CHARACTERS = 128

_FIT = re.compile(rb"[A-Za-z0-9._~+/=:@|,-]{1,%d}" % MAX_CHARACTERS)


def new_id() -> str:
    return uuid.uuid4().hex


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's, if it could stand in a log line and in a header as it is; else a new one."""
    given = next((value for name, value in headers if name == HEADER), b"")
    return given.decode("ascii") if _FIT.fullmatch(given) else new_id()
