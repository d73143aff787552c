"""What the policy `fair` is told of the keys: their weights, among those that the flags and the management port have set.

Used by `serve`, at the start and when the keys have changed, on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pagemill.failures import PagemillError
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.engine.errors import EngineDead
from pagemill_server.engine.ports import EngineClient

logger = logging.getLogger(__name__)


class KeyWeights:
    """`flags` are the weights that the server was started with."""

    def __init__(self, keys: KeyRing, flags: Mapping[str, float]) -> None:
        self._keys, self._flags = keys, flags
        self._told: dict[str, float] = {}

    def tell(self, engine: EngineClient) -> None:
        """A change lets the policy begin its accounts anew, so there is none without need."""
        config, new = engine.config, self._keys.weights()
        in_force = dict(config.weights)
        weights = merged_weights(in_force, self._told, new, self._flags)
        if weights != in_force:
            try:
                engine.configure(replace(config, weights=tuple(weights.items())))
            except (PagemillError, EngineDead) as error:
                logger.error("the weights of the keys stay as they were: %s", error)
                return
        self._told = new


def merged_weights(
    in_force: Mapping[str, float], old: Mapping[str, float], new: Mapping[str, float], flags: Mapping[str, float]
) -> dict[str, float]:
    """The policy's weights when those of the keys go from `old` to `new`: what somebody set meanwhile stays, a key's own goes
    before, and a name that the keys no longer weigh has the flags' again."""
    kept = {name: weight for name, weight in in_force.items() if old.get(name) != weight}
    back = {name: flags[name] for name in old if name in flags}
    return back | kept | dict(new)
