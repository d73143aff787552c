"""Where a server gets its model from: this machine first, then the hub (design: `model: org/name`).

`find` answers at once and is asked before anything slow is started; `fetch` may take long, reports bytes and resumes what an
earlier start left. Used by `pagemill serve` and `LLM`; `pull` fetches without looking here first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pagemill import hub, model_ref
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect, resolve

_FETCHABLE = (FailureReason.MODEL_NOT_FOUND, FailureReason.MODEL_TRUNCATED)


def find(model: str, environ: Mapping[str, str] = os.environ) -> ModelFiles | None:
    """The model as it lies on this machine; None for a hub model that isn't here, or only in part: `fetch` brings it.

    Raises PagemillError for a reference that can't be one, and for a model that can't be served.
    """
    ref = model_ref.parse(model)
    try:
        return inspect(resolve(model, environ))
    except PagemillError as error:
        if ref.kind == "hub" and error.failure.reason in _FETCHABLE:
            return None
        raise


def fetch(model: str, progress: hub.Progress, environ: Mapping[str, str] = os.environ) -> ModelFiles:
    """Bring a hub model into the models folder and describe it. Raises PagemillError as `hub.pull` and `inspect` do."""
    try:
        return inspect(hub.pull(model_ref.parse(model), progress, environ))
    except PagemillError as error:
        if error.failure.reason is not FailureReason.HUB_UNREACHABLE:
            raise
        raise _told_with(error, model, environ) from None


def _told_with(unreachable: PagemillError, model: str, environ: Mapping[str, str]) -> PagemillError:
    """Both troubles in one line: what lies here (nothing, or a copy damaged or not yet whole), and why no fetch mends it."""
    try:
        inspect(resolve(model, environ))
    except PagemillError as error:
        return PagemillError(FailureReason.HUB_UNREACHABLE, f"{error}; {unreachable}")
    return unreachable
