"""Equal hashes mean equal tokens after an equal beginning, under equal extra keys; and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from pagemill_server.engine.prefix import BlockHasher, root_hash
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request


def hashes(
    tokens: list[int], *, salt: str = "", request_id: str = "a", private: bool = False, block_size: int = 2
) -> list[bytes]:
    request = replace(make_request(tokens, request_id=request_id), cache_salt=salt)
    hasher = BlockHasher(block_size, private=private)
    return hasher.extend(Sequence(0, request, seed=0), len(tokens) // block_size)


def test_a_hash_names_a_block_and_all_before_it() -> None:
    base = hashes([1, 2, 3, 4, 5, 6])
    assert len(set(base)) == 3
    assert hashes([1, 2, 3, 4, 5, 7])[:2] == base[:2]
    assert hashes([1, 2, 3, 4, 5, 7])[2] != base[2]
    assert not set(hashes([9, 2, 3, 4, 5, 6])) & set(base)
    assert not set(hashes([3, 4, 5, 6])) & set(base)


def test_only_full_blocks_are_hashed_and_each_once() -> None:
    sequence = Sequence(0, make_request([1, 2, 3, 4, 5]), seed=0)
    hasher = BlockHasher(2)
    assert hasher.extend(sequence, 0) == []
    first = hasher.extend(sequence, 1)[0]
    sequence.block_hashes[0] = b"kept"
    assert hasher.extend(sequence, 2)[0] == b"kept"
    assert first == hashes([1, 2])[0]


def test_tokens_have_a_fixed_width() -> None:
    """Digits run together would spell these alike."""
    ids = [[1, 23], [12, 3], [123, 0], [0x01000000, 0], [1, 0], [256, 1], [65536, 256]]
    assert len({hashes(tokens)[0] for tokens in ids}) == len(ids)


def test_a_salt_parts_what_is_equal() -> None:
    tokens = [1, 2, 3, 4]
    assert hashes(tokens, salt="red") == hashes(tokens, salt="red", request_id="b")
    parted = [set(hashes(tokens, salt=salt)) for salt in ("", "red", "blue", "réd", "\ud800", "\udc00")]
    for one, other in combinations(parted, 2):
        assert not one & other


def test_keys_of_different_kinds_never_spell_the_same() -> None:
    """A salt and an adapter of one name, and parts that run together."""
    keys = [
        [],
        [("salt", "x")],
        [("adapter", "x")],
        [("salt", ""), ("adapter", "x")],
        [("salt", "x"), ("adapter", "")],
        [("saltx", "")],
        [("salt", "xadapter"), ("", "")],
        [("salt", "x"), ("salt", "x")],
    ]
    assert len({root_hash(key) for key in keys}) == len(keys)


@pytest.mark.parametrize("salt", ["", "red"])
def test_a_private_chain_is_its_requests_own(salt: str) -> None:
    tokens = [1, 2, 3, 4]
    mine = hashes(tokens, salt=salt, private=True)
    assert hashes(tokens, salt=salt, private=True) == mine
    assert not set(hashes(tokens, salt=salt, private=True, request_id="b")) & set(mine)
    assert not set(hashes(tokens, salt=salt)) & set(mine)


def test_a_chain_does_not_change_between_versions() -> None:
    """Whoever keeps hashes (a router, a trace) relies on it: a change needs another version in the root."""
    assert hashes([1, 2])[0].hex() == "228ed9b596c8c674f7c3872b4f09c598d6226cf83ccc594c5bca2f197504e6f5"
