"""One vector of a text's states: each pooling by its definition, normalised or not, and never a number that is none."""

from __future__ import annotations

import math

import pytest
import torch

from pagemill.embedding_config import POOLINGS, EmbeddingConfig, Pooling
from pagemill_server.model.pooling import embed

HIDDEN = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
BY_HAND = {"cls": (1.0, -2.0, 3.0), "mean": (2.5, 1.5, -1.5), "max": (4.0, 5.0, 3.0), "lasttoken": (4.0, 5.0, -6.0)}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_each_pooling_by_hand(pooling: Pooling) -> None:
    assert embed(HIDDEN, EmbeddingConfig(pooling, normalize=False)) == BY_HAND[pooling]
    normalized = embed(HIDDEN, EmbeddingConfig(pooling))
    assert normalized is not None
    length = math.dist(BY_HAND[pooling], (0, 0, 0))
    assert normalized == pytest.approx([value / length for value in BY_HAND[pooling]], abs=1e-7)


def test_half_precision_is_pooled_in_float32() -> None:
    many = torch.full((4096, 1), 1.001, dtype=torch.bfloat16)
    (value,) = embed(many, EmbeddingConfig("mean", normalize=False)) or ()
    assert value == pytest.approx(float(many[0, 0]), abs=1e-6)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_is_no_vector(broken: float) -> None:
    hidden = HIDDEN.clone()
    hidden[1, 1] = broken
    assert embed(hidden, EmbeddingConfig("mean")) is None
    assert embed(hidden, EmbeddingConfig("cls")) is not None


def test_a_vector_of_nothing_stays_nothing() -> None:
    assert embed(torch.zeros(2, 3), EmbeddingConfig("mean")) == (0.0, 0.0, 0.0)
