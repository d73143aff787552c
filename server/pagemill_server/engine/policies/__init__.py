"""Who goes first, who gives way, who may come in: the part of scheduling that users choose (`--scheduling-policy`).

`interface.Policy` says what a policy is; `load` finds one by its name. Knows sequences; knows neither blocks nor the model.
"""

from __future__ import annotations

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.policies.interface import Policy

NOT_YET = ("priority", "fair", "deadline")

__all__ = ["Policy", "load"]


def load(config: SchedulerConfig) -> Policy:
    """The policy that `config.policy` names. Raises PagemillError (InvalidConfiguration); quick, so that flags can be checked at
    the door."""
    name = config.policy
    if name == "fcfs":
        return Policy(config)
    if name in NOT_YET or ":" in name:
        reason = f'The scheduling policy "{name}" is not available yet; the only one is "fcfs".'
    else:
        reason = f'There is no scheduling policy "{name}"; the only one is "fcfs".'
    raise PagemillError(FailureReason.INVALID_CONFIGURATION, reason, {"schedulingPolicy": "fcfs"})
