"""Who takes a request: even spreads, the ring's promises, and its bound."""

from __future__ import annotations

from collections import Counter

from pagemill_operator.gateway.balance import LOAD_FACTOR, Ring, least_loaded

REPLICAS = [f"10.0.0.{number}:8000" for number in range(1, 6)]
KEYS = [f"prompt {number}".encode() for number in range(2000)]


def owners(replicas: list[str]) -> dict[bytes, str]:
    """Of each key while nothing runs."""
    ring = Ring(replicas)
    return {key: ring.pick(key, replicas, {}) for key in KEYS}


def test_the_least_loaded_takes_it_and_ties_go_round() -> None:
    assert least_loaded(REPLICAS, dict.fromkeys(REPLICAS, 3) | {REPLICAS[2]: 2}) == REPLICAS[2]
    assert {least_loaded(REPLICAS, {}) for _ in range(500)} == set(REPLICAS)


def test_a_replica_that_is_new_takes_what_comes_until_it_has_as_much() -> None:
    running = Counter({REPLICAS[0]: 32})
    for _ in range(64):
        running[least_loaded(REPLICAS[:3], running)] += 1
    assert sorted(running.values()) == [32, 32, 32]


def test_the_ring_follows_from_the_addresses_alone() -> None:
    assert owners(REPLICAS) == owners(REPLICAS[::-1])


def test_the_places_never_change_from_one_release_to_the_next() -> None:
    """Two gateways of two releases serve side by side during an upgrade."""
    ring = Ring(["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"])
    picked = [
        ring.pick(b"prompt %d" % number, ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"], {})
        for number in range(12)
    ]
    assert "".join(address[7] for address in picked) == "321233132212"


def test_keys_are_spread() -> None:
    shares = Counter(owners(REPLICAS).values())
    assert min(shares.values()) > 0.7 * len(KEYS) / 5
    assert max(shares.values()) < 1.3 * len(KEYS) / 5


def test_a_replica_that_goes_moves_only_its_own() -> None:
    before, after = owners(REPLICAS), owners(REPLICAS[:-1])
    assert all(after[key] == before[key] for key in KEYS if before[key] != REPLICAS[-1])
    assert len({after[key] for key in KEYS if before[key] == REPLICAS[-1]}) == 4, "and not all to one"


def test_nobody_takes_more_than_the_bound_for_a_prefix_s_sake() -> None:
    ring, running = Ring(REPLICAS), Counter[str]()
    for number in range(1, 401):
        running[ring.pick(b"the only prompt", REPLICAS, running)] += 1
        assert max(running.values()) <= -(-LOAD_FACTOR * number // 5)
    assert len(running) == 4, "which four take together: 4 x 1.25 / 5"


def test_only_candidates_are_picked() -> None:
    ring = Ring(REPLICAS)
    left = {key: ring.pick(key, REPLICAS[:2], {}) for key in KEYS}
    assert set(left.values()) == set(REPLICAS[:2])
    assert all(left[key] == owner for key, owner in owners(REPLICAS).items() if owner in REPLICAS[:2])
