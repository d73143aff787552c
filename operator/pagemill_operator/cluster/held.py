"""How many requests wait at the gateways of a namespace for a deployment, from what each of them says on its /metrics.

Pure. What some of them say is a lower bound, and enough to wake a model; that nobody waits is known only where all that take
requests have said so. Called by `kubernetes`.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.gateway.metrics import WAITING

_DEPLOYMENT = "deployment"  # its label


def held_in_all(deployment: str, said: Iterable[tuple[Manifest, str | None]]) -> int | None:
    """The sum over pods of a gateway, each with the text of its metrics; None where nobody waits as far as is known."""
    total, heard, silent = 0, False, False
    for pod, text in said:
        found = None if text is None else waiting(text, deployment)
        heard = heard or found is not None
        silent = silent or (found is None and _takes_requests(pod))
        total += found or 0
    return total if total or (heard and not silent) else None


def waiting(text: str, deployment: str) -> int | None:
    """What one gateway says; None where it says nothing of the deployment, or nothing that can be read."""
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == WAITING and sample.labels.get(_DEPLOYMENT) == deployment:
                    return max(0, int(sample.value))
    except (ValueError, OverflowError, KeyError, IndexError):  # no metrics, or NaN
        return None
    return None


def _takes_requests(pod: Manifest) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
