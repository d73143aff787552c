"""Which replica takes a request: the one with the least to do, or the one that a prompt's beginning belongs to. Pure.

`Ring` is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016, https://arxiv.org/abs/1608.01350): it follows
from the addresses alone, so that every gateway sends a prompt to the same replica, and a replica that goes moves only its own.
Used by `served`.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import random
from collections.abc import Collection, Mapping, Sequence

LOAD_FACTOR = 1.25  # times the average, which no replica is asked to exceed for a prefix's sake
POINTS = 160  # a replica on the ring: shares differ by about a tenth


def least_loaded(candidates: Collection[str], running: Mapping[str, int]) -> str:
    """Any one of those with the fewest requests."""
    fewest = min(running.get(address, 0) for address in candidates)
    return random.choice([address for address in candidates if running.get(address, 0) == fewest])


class Ring:
    """Of addresses, in any order."""

    def __init__(self, addresses: Collection[str]) -> None:
        points = sorted(
            (_hash(f"{address}#{number}".encode()), address) for address in addresses for number in range(POINTS)
        )
        self._places: Sequence[int] = [place for place, _ in points]
        self._owners: Sequence[str] = [address for _, address in points]

    def pick(self, key: bytes, candidates: Collection[str], running: Mapping[str, int]) -> str:
        """The first candidate from the key's place on that has room, clockwise; `candidates` are some of the ring's."""
        total = sum(running.get(address, 0) for address in candidates)
        room = math.ceil(LOAD_FACTOR * (total + 1) / len(candidates))
        begin = bisect.bisect(self._places, _hash(key))
        for step in range(len(self._owners)):
            address = self._owners[(begin + step) % len(self._owners)]
            if address in candidates and running.get(address, 0) < room:
                return address
        return least_loaded(candidates, running)  # not reached: somebody is at or below the average


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
