"""Who goes first, who gives way, who may come in: the part of scheduling that users choose (`--scheduling-policy`).

`interface.Policy` says what a policy is; `load` finds one by its name. Knows sequences; knows neither blocks nor the model.
"""

from __future__ import annotations

from pagemill_server.engine.policies.interface import Policy
from pagemill_server.engine.policies.load import OURS, load

__all__ = ["OURS", "Policy", "load"]
