"""What names a block's content: a sha256 chain over the full blocks of a sequence, from a root that says who may share it.

Equal hash, equal tokens in equal positions after an equal beginning, under equal extra keys; so a block may be read by whoever
arrives at its hash. Called by `kv_cache` only; knows nothing of blocks' numbers or whereabouts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from pagemill_server.engine.request import AddRequest
from pagemill_server.engine.sequence import Sequence

_VERSION = b"pagemill block chain 1"


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What of a sequence's first tokens is there already, in whole blocks. Made by `KVCache.match` and `KVCache.shared`."""

    device: tuple[int, ...]  # device blocks of the first tokens, in order
    host: tuple[int, ...] = ()  # host blocks that continue them
    leader: int | None = None  # the seq_id whose own blocks `device` are (a fork); None: found by their hashes


NO_MATCH = PrefixMatch(())


class BlockHasher:
    """Keeps `Sequence.block_hashes`. `private`: a request finds its own blocks only, and those of its n sequences."""

    def __init__(self, block_size: int, *, private: bool = False) -> None:
        self._block_size = block_size
        self._private = private
        self._pack = struct.Struct(f"<{block_size}I").pack  # fixed width, so that no two blocks spell the same bytes

    def extend(self, sequence: Sequence, count: int) -> list[bytes]:
        """Hash the sequence's blocks up to `count` of them, all of known tokens; each once. The list is the sequence's own."""
        hashes = sequence.block_hashes
        size = self._block_size
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else root_hash(self._extra_keys(sequence.request))
            tokens = self._pack(*sequence.token_ids[start : start + size])
            hashes.append(hashlib.sha256(parent + tokens).digest())
        return hashes

    def _extra_keys(self, request: AddRequest) -> Iterable[tuple[str, str]]:
        yield "salt", request.cache_salt
        if self._private:
            yield "request", request.request_id


def root_hash(extra_keys: Iterable[tuple[str, str]]) -> bytes:
    """Where a chain begins. Each key has a tag and each part its length: a salt never spells the same as another kind of key."""
    digest = hashlib.sha256(_VERSION)
    for key in extra_keys:
        for part in key:
            # A salt comes out of JSON, which can hold half of a surrogate pair.
            spelt = part.encode("utf-8", "surrogatepass")
            digest.update(len(spelt).to_bytes(8, "little") + spelt)
    return digest.digest()
