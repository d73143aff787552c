"""A counter-based generator: the number at a place of a seed, with no state to keep, lose or share between sequences.

SplitMix64's finaliser (https://doi.org/10.1145/2660193.2660195) over seed, sequence and position. Pure; used by `sampler`.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (taken modulo 2^64).

    `index` is which of its request's sequences draws, `position` how many tokens it drew before.
    """
    key = _mix((seed + _GOLDEN) & _MASK)
    for counter in (index, position):
        key = _mix((key + (counter + 1) * _GOLDEN) & _MASK)
    return (key >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
