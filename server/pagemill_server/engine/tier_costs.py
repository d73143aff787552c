"""Whether blocks are better fetched from the host tier than computed again, from what both were measured to take.

Fed by `commit`, asked by `admission`. `FixedCosts` is for whoever wants one way always.
"""

from __future__ import annotations

from typing import Protocol

from pagemill_server.engine.step_model import StepModel

NEWS = 0.2  # what a fetch that ends weighs in the mean


class TierCosts(Protocol):
    """What `admission` asks and `commit` tells."""

    def fetch_pays(self, num_blocks: int, num_tokens: int, context: int) -> bool:
        """Whether to fetch so many blocks, and not compute their tokens, which come after `context` others."""
        ...

    def observe(self, num_blocks: int, seconds: float) -> None:
        """Copying so many blocks to the device took so long."""
        ...


class MeasuredCosts:
    """Fetches until a fetch was measured; then whatever took less."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._block_seconds: float | None = None

    def fetch_pays(self, num_blocks: int, num_tokens: int, context: int) -> bool:
        if self._block_seconds is None:
            return True
        return num_blocks * self._block_seconds < self._model.prefill_seconds(num_tokens, context)

    def observe(self, num_blocks: int, seconds: float) -> None:
        new = seconds / num_blocks
        known = new if self._block_seconds is None else self._block_seconds
        self._block_seconds = known + NEWS * (new - known)


class FixedCosts:
    """The same answer always: for tests and measurements of either way."""

    def __init__(self, *, fetch: bool) -> None:
        self._fetch = fetch

    def fetch_pays(self, num_blocks: int, num_tokens: int, context: int) -> bool:
        return self._fetch

    def observe(self, num_blocks: int, seconds: float) -> None:
        pass
