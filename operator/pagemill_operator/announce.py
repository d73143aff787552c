"""Posts events, and never lets one that can't be posted hold up the status, which is what counts. Called by `reconcile`."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pagemill_operator.cluster.interface import Cluster, ClusterError, Manifest

_LOG = logging.getLogger("pagemill.operator")
_told: set[str] = set()  # namespaces whose refusal has been logged: it would be at every change


async def announce(cluster: Cluster, events: Iterable[Manifest]) -> None:
    """In order; after the first that fails the rest is left: the API server has other worries than our words."""
    for event in events:
        try:
            await cluster.post_event(event)
        except ClusterError as error:
            namespace = event["metadata"]["namespace"]
            if "being terminated" in str(error):  # the namespace goes, and everything in it
                return
            if not error.refused or namespace not in _told:
                _LOG.warning("%s: an event was not posted, the status says the same: %s", namespace, error)
            if error.refused:
                _told.add(namespace)
            return
