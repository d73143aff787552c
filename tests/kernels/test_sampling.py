"""The sampler's kernel against its twin, token for token, and the twin against what the CPU sampler means by its settings."""

from __future__ import annotations

import pytest
import torch

from pagemill_kernels import reference
from pagemill_server.engine.request import SamplingParams
from pagemill_server.model.draw import draw
from tests.kernels.where import EVERYWHERE, ON_A_GPU, Kernels, random

pytest.importorskip("triton", reason="needs triton: PyPI's torch brings it, the CPU wheel does not")

SETTINGS = [  # temperature, top_k, top_p, min_p
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 1, 1.0, 0.0),
    (1.0, 50, 1.0, 0.0),
    (2.0, 299, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (3.0, 0, 0.999, 0.0),
    (0.5, 0, 0.01, 0.0),
    (1.0, 0, 1.0, 0.05),
    (1.0, 0, 1.0, 1.0),
    (1.5, 40, 0.8, 0.02),
    (1.0, 10_000, 0.5, 0.0),
    (1e-9, 0, 0.9, 0.0),
    (1.0, -1, 0.0, 0.0),
]


def arguments(rows: int, settings: list[tuple[float, int, float, float]], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Settings in turn, and a number, for so many rows."""
    chosen = [settings[row % len(settings)] for row in range(rows)]
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*chosen, strict=True))
    return temperature, top_k, top_p, min_p, torch.rand(rows, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("size", [1, 37, 300, 5000])
def test_the_kernel_draws_what_its_twin_draws(kernels: Kernels, size: int) -> None:
    rows = len(SETTINGS)
    logits = random(rows, size + 3, seed=size)[:, :size] * 3
    values = arguments(rows, SETTINGS, seed=size)
    found = kernels.call("sampling.top_k_top_p", logits, *values)[0]
    assert found.dtype == torch.int64
    assert found.tolist() == reference.top_k_top_p(logits, *values).tolist()


@pytest.mark.parametrize("kernels", EVERYWHERE)
def test_of_equals_the_lowest_ids_stay(kernels: Kernels) -> None:
    """All weigh the same, or come in steps of many equals; every second token is masked."""
    flat, steps = torch.zeros(60), (torch.arange(60) // 10).float()
    logits = torch.stack([flat, steps] * len(SETTINGS)).contiguous()
    logits[:, ::2] = -torch.inf
    doubled = [setting for setting in SETTINGS for _ in range(2)]
    values = arguments(len(logits), doubled)
    found = kernels.call("sampling.top_k_top_p", logits, *values)[0]
    assert found.tolist() == reference.top_k_top_p(logits, *values).tolist()
    assert all(token % 2 for token in found.tolist())
    assert found[0] == 1  # greedy, of all that are equal


@pytest.mark.parametrize("kernels", EVERYWHERE)
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2.0**-24, 1 - 2.0**-53])
def test_a_masked_token_is_never_drawn_at_either_end(kernels: Kernels, number: float) -> None:
    settings = [(1.0, 0, 1.0, 0.0), (1.0, 2, 1.0, 0.0), (1.0, 0, 0.99, 0.0), (1.0, 0, 1.0, 0.5)]
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]).expand(4, -1).contiguous()
    values = *arguments(4, settings)[:4], torch.full((4,), number, dtype=torch.float64)
    assert set(kernels.call("sampling.top_k_top_p", logits, *values)[0].tolist()) <= {1, 3}


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), [s for s in SETTINGS if s[0] > 0.1 and s[2] > 0])
def test_the_twin_means_what_the_cpu_sampler_means(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Over numbers that lie evenly in [0, 1) both draw each token equally often; in which order they lay tokens out differs."""
    points = 500
    row = random(200, seed=5) * 2
    row[40:60] = row[3]  # equals
    numbers = [(point + 0.5) / points for point in range(points)]
    params = SamplingParams(temperature=temperature, top_k=max(top_k, 0), top_p=top_p, min_p=min_p)
    theirs = torch.bincount(torch.tensor(draw(row.expand(points, -1), [params] * points, numbers)), minlength=200)
    values = *arguments(points, [(temperature, top_k, top_p, min_p)])[:4], torch.tensor(numbers).double()
    drawn = reference.top_k_top_p(row.expand(points, -1), *values)
    ours = torch.bincount(drawn, minlength=200)
    assert int((ours - theirs).abs().max()) <= 1
    assert ours.sum() == points


@pytest.mark.parametrize("kernels", ON_A_GPU)
@pytest.mark.parametrize("size", [49152, 151936, 262208])
def test_real_vocabularies(kernels: Kernels, size: int) -> None:
    """The device's exponential differs in the last bit, which moves a boundary between tokens now and then."""
    rows = 8 * len(SETTINGS)
    logits, values = random(rows, size) * 3, arguments(rows, SETTINGS)
    found = kernels.call("sampling.top_k_top_p", logits, *values)[0]
    assert (found == reference.top_k_top_p(logits, *values)).float().mean() > 0.95
