"""`--settings-file`: the hot settings that a deployment's operator keeps in a file, so that a server that starts again has them.

While it runs, the same settings come by PATCH /config; the file is not looked at again. Used by `cli`.
"""

from __future__ import annotations

import json
from pathlib import Path

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import hot


def applied(config: SchedulerConfig, path: str) -> SchedulerConfig:
    """`config` with what the file sets. Raises PagemillError (InvalidConfiguration) for a file that can't be."""
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _invalid(path, f"can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"is not valid JSON: {error}") from None
    if not isinstance(settings, dict):
        raise _invalid(path, "does not hold a JSON object")
    try:
        return hot.changed(config, settings)
    except hot.InvalidSetting as error:
        raise _invalid(path, f"holds a setting that can't be: {error}") from None


def _invalid(path: str, what: str) -> PagemillError:
    return PagemillError(FailureReason.INVALID_CONFIGURATION, f"--settings-file: {path} {what}")
