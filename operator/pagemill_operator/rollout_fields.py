"""How far a rollout may go while replicas of the new template fail: `rollout.strategy` and `rollout.maxFailures` for Kubernetes.

Pure. Kubernetes stops a rolling update by itself once as many replicas are missing (`Replace`) or above the number (`Surge`) as it
was allowed. So it is allowed one, and one more for each that has failed, as long as the spec accepts another failure.
Called by `steer`.
"""

from __future__ import annotations

from pagemill_operator.fleet import Fleet
from pagemill_operator.spec import LLMDeploymentSpec


def allowance(spec: LLMDeploymentSpec, fleet: Fleet) -> int:
    """Replicas that a rollout may have under way at once. With maxFailures left out it stops at the first that fails."""
    if not fleet.older:
        return 1
    return allowed(spec.rollout.max_failures, sum(pod.trouble is not None for pod in fleet.newest))


def allowed(most: int | None, failed: int) -> int:
    """The same of numbers: one, and one more for each failure but the last that is accepted."""
    return 1 + min(failed, (most or 1) - 1)
