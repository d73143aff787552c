"""What a start took of the memory: what was predicted, beside what was measured. Bytes.

Filled by `model/load`; shown by the log and by /metrics. Knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.memory_fit import MemoryFit
from pagemill.sizes import format_size


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """By kind; None where the machine does not let us measure it."""

    weights: int | None
    activation: int | None  # the most that a step takes beside weights and cache
    kv_cache: int | None


@dataclass(frozen=True, slots=True)
class StartMemory:
    """How the memory was divided (`fit`), and what was then measured."""

    fit: MemoryFit
    measured: MemoryUse

    @property
    def predicted(self) -> MemoryUse:
        return MemoryUse(self.fit.weights_bytes, self.fit.activation_bytes, self.fit.kv_cache_bytes)

    def __str__(self) -> str:
        """One line: weights 513.1 MiB predicted, 520.0 MiB measured; …"""
        predicted, measured = self.predicted, self.measured
        return "; ".join(
            f"{name} {_size(one)} predicted, {_size(other)} measured"
            for name, one, other in (
                ("weights", predicted.weights, measured.weights),
                ("a step's activations", predicted.activation, measured.activation),
                ("KV cache", predicted.kv_cache, measured.kv_cache),
            )
        )


def _size(number: int | None) -> str:
    return "not" if number is None else format_size(number)
