"""Why a server ended, as one JSON line that the operator can act on.

The server writes the line to the file that `PAGEMILL_TERMINATION_LOG` names (in a pod `/dev/termination-log`); the operator
reads it from the container's state and turns it into a condition. The same reasons are raised as `PagemillError` inside both
programs, so that a person sees one clear line on a terminal and the same words in a status.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pagemill.endpoints import TERMINATION_LOG_ENV

TERMINATION_LIMIT = 4096  # bytes; Kubernetes cuts a container's termination message here


class FailureReason(StrEnum):
    """CamelCase, as a condition's reason must be."""

    MODEL_NOT_FOUND = "ModelNotFound"
    GATED_MODEL = "GatedModel"
    MODEL_TRUNCATED = "ModelTruncated"
    MODEL_INVALID = "ModelInvalid"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    UNSAFE_MODEL_FORMAT = "UnsafeModelFormat"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    UNSUPPORTED_TOKENIZER = "UnsupportedTokenizer"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    OUT_OF_MEMORY = "OutOfMemory"
    CUDA_OUT_OF_MEMORY = "CUDAOutOfMemory"
    CUDA_ERROR = "CUDAError"
    DRIVER_TOO_OLD = "DriverTooOld"
    DISK_FULL = "DiskFull"
    HUB_UNREACHABLE = "HubUnreachable"
    LOAD_STALLED = "LoadStalled"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    ADDRESS_IN_USE = "AddressInUse"
    ENGINE_FAILED = "EngineFailed"


@dataclass(frozen=True, slots=True)
class Failure:
    """One reason to end. `message` is a sentence that says what to do; `suggestion` maps spec fields to values that would work."""

    reason: FailureReason
    message: str
    suggestion: Mapping[str, str | int | float] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON that with its newline fits `TERMINATION_LIMIT` (the kubelet keeps a file's last bytes, so that one
        byte more would cost the opening brace). The message is cut, then the suggestion dropped, never the reason."""
        message, suggestion = self.message, dict(self.suggestion)
        while True:
            body = {"reason": self.reason.value, "message": message, "suggestion": suggestion}
            line = json.dumps(body, ensure_ascii=True)
            if len(line) < TERMINATION_LIMIT:
                return line
            if not message:
                suggestion = {}
            message = message[: len(message) * 3 // 4]


class PagemillError(Exception):
    """An error that a person can act on; the edge prints its one line, without a traceback."""

    def __init__(
        self, reason: FailureReason, message: str, suggestion: Mapping[str, str | int | float] | None = None
    ) -> None:
        message = _one_line(message)
        super().__init__(message)
        self.failure = Failure(reason, message, dict(suggestion or {}))


def _one_line(message: str) -> str:
    """Names quoted in a message come out of damaged files too: no line breaks, and nothing that UTF-8 can't hold."""
    return " ".join(message.encode("utf-8", "backslashreplace").decode("utf-8").split())


def parse_termination(text: str) -> Failure | None:
    """The failure in a container's termination message, or None when it holds none (a crash, an OOM kill, another image).

    The last line that parses wins: a server that writes twice means its later word.
    """
    for line in reversed(text.strip().splitlines()):
        try:
            body = json.loads(line)
            reason = FailureReason(body["reason"])
            return Failure(reason, str(body.get("message", "")), _scalars(body.get("suggestion")))
        except (ValueError, KeyError, TypeError, RecursionError):  # any program may have written here
            continue
    return None


def _scalars(suggestion: object) -> dict[str, str | int | float]:
    if not isinstance(suggestion, dict):
        return {}
    return {key: value for key, value in suggestion.items() if isinstance(value, str | int | float)}


def write_termination(failure: Failure, environ: Mapping[str, str] = os.environ) -> None:
    """Leave the failure where the operator will find it; does nothing where no file is named.

    A log that can't be written must not hide the failure itself, which the caller prints as well.
    """
    path = environ.get(TERMINATION_LOG_ENV)
    if not path:
        return
    try:
        Path(path).write_text(failure.to_line() + "\n", encoding="utf-8")
    except OSError:
        return
