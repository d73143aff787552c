"""What `pagemill up` says when the status of an LLMDeployment changes: a line a condition, one for loading. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pagemill_operator.cluster.interface import Manifest

_SAID = ("status", "reason", "message")


def changed_lines(old: Manifest | None, new: Manifest, now: datetime) -> Iterator[str]:
    """`12:34:56 name Ready False Loading: message` for each condition that says something new."""
    before, after = _status(old), _status(new)
    prefix = f"{now:%H:%M:%S} {new['metadata']['name']}"
    known = {condition["type"]: condition for condition in before.get("conditions") or ()}
    loading = after.get("loading")
    if loading and loading != before.get("loading"):
        yield f"{prefix} Loading {loading['phase']} {loading['percent']}%"
    for condition in after.get("conditions") or ():
        if _said(condition) != _said(known.get(condition["type"], {})):
            yield f"{prefix} {condition['type']} {condition['status']} {condition['reason']}: {condition['message']}"


def became_ready(old: Manifest | None, new: Manifest) -> bool:
    """Whether Ready has just turned True with a replica that serves (not: scaled to zero)."""
    return not _serves(old) and _serves(new)


def _serves(manifest: Manifest | None) -> bool:
    status = _status(manifest)
    ready = any(found["type"] == "Ready" and found["status"] == "True" for found in status.get("conditions") or ())
    return ready and bool(status.get("readyReplicas"))


def _status(manifest: Manifest | None) -> Mapping[str, Any]:
    return (manifest or {}).get("status") or {}


def _said(condition: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(condition.get(name) for name in _SAID)
