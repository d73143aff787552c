"""What a replica holds, as /ready, a preflight's report and the status have it: five numbers, all or none.

Pure. Read by `preflight_report` and by the operator, which believe no answer that is not one.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("weightsBytes", "kvCacheBytes", "kvBlocks", "maxConcurrentTokens", "maxModelLenThatFits")
_MOST = (1 << 63) - 1  # what Kubernetes takes for an integer


def read_capacity(value: object) -> dict[str, int]:
    """The five numbers. Raises ValueError, KeyError or TypeError for what is none."""
    if not isinstance(value, Mapping):
        raise TypeError(value)
    numbers = {name: value[name] for name in NAMES}
    if not all(type(number) is int and 0 <= number <= _MOST for number in numbers.values()):
        raise ValueError(numbers)
    return numbers
