"""Reads a model's JSON files: what is missing, broken or of another shape ends in one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagemill.failures import FailureReason, PagemillError


def read_object(path: Path) -> dict[str, Any]:
    """The file's object. Raises PagemillError (ModelInvalid)."""
    body = _read(path)
    if not isinstance(body, dict):
        raise PagemillError(FailureReason.MODEL_INVALID, f"{path} does not hold a JSON object")
    return body


def read_list(path: Path) -> list[Any]:
    """The file's list. Raises PagemillError (ModelInvalid)."""
    body = _read(path)
    if not isinstance(body, list):
        raise PagemillError(FailureReason.MODEL_INVALID, f"{path} does not hold a JSON list")
    return body


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is missing: fetch the model again") from None
    except (ValueError, RecursionError) as error:
        raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is not valid JSON: {error}") from None
