"""Whether an object that has a child's name is ours: a forced apply would take over another's, and its owner's end delete it.

Pure; called by `kubernetes` before it makes a child.
"""

from __future__ import annotations

from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import DEPLOYMENT_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL


def is_ours(found: Manifest, child: Manifest) -> bool:
    """By its labels, which a restored backup has too; or, where a hand took those away, because we have applied it before."""
    wanted: dict[str, str] = child["metadata"]["labels"]
    labels: dict[str, str] = found["metadata"].get("labels") or {}
    if all(labels.get(name) == wanted.get(name) for name in (DEPLOYMENT_LABEL, MANAGED_BY_LABEL)):
        return True
    fields: list[dict[str, Any]] = found["metadata"].get("managedFields") or []
    return any(entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" for entry in fields)
