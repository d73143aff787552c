"""Where a server stands between its start and its end, and what /ready says about it.

Written by the loading thread (progress) and by `serve` (phases); read by the routes. No lock: every field is one assignment.
Knows neither HTTP nor the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagemill_server.memory import StartMemory


class Phase(StrEnum):
    """The words of `pagemill.endpoints.PHASES`."""

    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    LOADING_WEIGHTS = "LoadingWeights"
    WARMUP = "Warmup"
    SERVING = "Serving"
    DRAINING = "Draining"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the memory gave; filled by the loader from its MemoryFit. Bytes and tokens."""

    weights_bytes: int
    kv_cache_bytes: int
    kv_blocks: int
    max_concurrent_tokens: int
    max_model_len_that_fits: int


class Lifecycle:
    """Times are `clock()` seconds."""

    def __init__(self, weights_bytes: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.phase = Phase.STARTING
        self.bytes_loaded = 0
        self.bytes_total = weights_bytes
        self.capacity: Capacity | None = None
        self.memory: StartMemory | None = None  # predicted and measured; with capacity
        self.refusing = False  # draining, and the lame duck's time is over: new requests get a 503
        self.last_progress = clock()

    @property
    def ready(self) -> bool:
        return self.phase is Phase.SERVING

    @property
    def loading(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.DOWNLOADING, Phase.LOADING_WEIGHTS, Phase.WARMUP)

    @property
    def percent(self) -> int:
        if not self.loading:
            return 100
        return 100 * self.bytes_loaded // self.bytes_total if self.bytes_total else 0

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.last_progress = self._clock()

    def progress(self, done: int, total: int) -> None:
        """Bytes fetched, or of weights read, so far; the same count again is no progress."""
        if done != self.bytes_loaded:
            self.last_progress = self._clock()
        self.bytes_loaded, self.bytes_total = done, total

    def stuck_for(self) -> float:
        """Seconds without a sign of life while loading; 0 once loaded."""
        return self._clock() - self.last_progress if self.loading else 0.0

    def ready_body(self) -> dict[str, Any]:
        """The JSON of /ready; its shape is `pagemill.endpoints`'."""
        capacity = self.capacity
        return {
            "ready": self.ready,
            "phase": self.phase.value,
            "percent": self.percent,
            "bytesLoaded": self.bytes_loaded,
            "bytesTotal": self.bytes_total,
            "capacity": None
            if capacity is None
            else {
                "weightsBytes": capacity.weights_bytes,
                "kvCacheBytes": capacity.kv_cache_bytes,
                "kvBlocks": capacity.kv_blocks,
                "maxConcurrentTokens": capacity.max_concurrent_tokens,
                "maxModelLenThatFits": capacity.max_model_len_that_fits,
            },
        }
