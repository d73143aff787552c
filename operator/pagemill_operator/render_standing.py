"""The Deployment as it stands, with another number of replicas: what may change while a new template waits for its preflight.

Pure. Whoever scales must not wait for a download, and a replica that was drained to go must go. Called by `render`.
"""

from __future__ import annotations

from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import GROUP, SPEC_HASH_ANNOTATION


def rescaled(live: Manifest, replicas: int) -> dict[str, Any] | None:
    """A whole manifest to apply: what an apply leaves out, it takes away. None where the number is right, and for one that
    sleeps: its template may never have been looked at."""
    if live["spec"].get("replicas", 1) in (0, replicas):
        return None
    metadata = live["metadata"]
    ours = {
        name: text
        for name, text in (metadata.get("annotations") or {}).items()
        if name.partition("/")[0] == GROUP and name != SPEC_HASH_ANNOTATION
    }
    kept = {name: metadata[name] for name in ("name", "namespace", "labels", "ownerReferences") if name in metadata}
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {**kept, "annotations": ours},
        "spec": {**live["spec"], "replicas": replicas},
    }
