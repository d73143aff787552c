"""The generator: reproducible, evenly spread, and without a pattern between neighbouring seeds and counters."""

from __future__ import annotations

import numpy as np
import pytest

from pagemill_server.model.random_numbers import uniform


def test_known_values_never_change() -> None:
    """A seed's answers are part of what users rely on: a change here changes every seeded completion."""
    drawn = [uniform(0, 0, 0), uniform(42, 1, 7), uniform(-1, 0, 3)]
    assert drawn == [0.13870941014555427, 0.5649028026636309, 0.5032469316096413]


@pytest.mark.parametrize("seed", [-(2**70), -1, 0, 2**63, 2**64 - 1, 2**200])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert 0.0 <= uniform(seed, 0, 0) < 1.0
    assert uniform(seed, 0, 1) != uniform(seed, 0, 0) != uniform(seed, 1, 0)


@pytest.mark.parametrize(
    "draw",
    [lambda i: uniform(1, 0, i), lambda i: uniform(1, i, 0), lambda i: uniform(i, 0, 0), lambda i: uniform(i, i, i)],
)
def test_numbers_are_evenly_spread_along_counters_and_seeds(draw: object) -> None:
    numbers = np.array([draw(i) for i in range(20_000)])  # type: ignore[operator]
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert 55 < chi_square < 160  # 99 degrees of freedom: outside with a chance below 1 in 10,000
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("other", [lambda i: uniform(6, 0, i), lambda i: uniform(5, 1, i)], ids=["seed", "index"])
def test_neighbouring_seeds_and_sequences_are_unrelated(other: object) -> None:
    first = np.array([uniform(5, 0, i) for i in range(5000)])
    second = np.array([other(i) for i in range(5000)])  # type: ignore[operator]
    shifted = np.array([uniform(5, 0, i + 1) for i in range(5000)])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
    assert not np.isin(second, shifted).any()


def test_a_sequence_is_no_seed() -> None:
    """Sequence 1 of seed 5 is not sequence 0 of seed 6: two requests with neighbouring seeds share no answer."""
    assert len({uniform(seed, index, 0) for seed in range(50) for index in range(50)}) == 2500
