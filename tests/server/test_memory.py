"""What a start says about memory: one line in the log, one metric a kind and source."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pagemill import metrics as names
from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig
from pagemill_server.lifecycle import Lifecycle, Phase
from pagemill_server.loading import load
from pagemill_server.memory import MemoryUse, StartMemory
from pagemill_server.metrics import Metrics
from pagemill_server.settings import Settings
from tests.server.api.running import settings_for
from tests.server.tiny import write_tiny_llama


class Phases(Lifecycle):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Phase, int]] = []

    def enter(self, phase: Phase) -> None:
        super().enter(phase)
        self.seen.append((phase, self.percent))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def loaded(settings: Settings, folder: Path) -> tuple[Phases, StartMemory]:
    lifecycle = Phases()
    load(settings, inspect(folder), lifecycle)
    assert lifecycle.memory is not None
    return lifecycle, lifecycle.memory


def test_the_first_step_runs_when_the_weights_are_in(folder: Path) -> None:
    lifecycle, _ = loaded(settings_for(folder), folder)
    assert lifecycle.seen == [(Phase.LOADING_WEIGHTS, 0), (Phase.WARMUP, 100)]


def test_predicted_and_measured_are_in_one_line_of_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _, memory = loaded(settings_for(folder), folder)
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("memory: ")]
    assert line == f"memory: {memory}"
    assert "KV cache 4.0 MiB predicted, 4.0 MiB measured" in line


def test_what_could_not_be_measured_is_said_so(folder: Path) -> None:
    _, memory = loaded(settings_for(folder), folder)
    blind = replace(memory, measured=MemoryUse(1024, None, 2048))
    assert "1.0 KiB measured" in str(blind)
    assert "predicted, not measured; KV cache" in str(blind)


def test_the_metric_has_every_kind_from_both_sources(folder: Path) -> None:
    memory: list[StartMemory] = []
    metrics = Metrics("some/model", 16, lambda: None, lambda: memory[0] if memory else None)

    def value(kind: str, source: str) -> float | None:
        labels = {names.MEMORY_KIND_LABEL: kind, names.MEMORY_SOURCE_LABEL: source}
        return metrics.registry.get_sample_value(
            names.MEMORY_BYTES, {names.MODEL_NAME_LABEL: "some/model", names.ENGINE_LABEL: "0", **labels}
        )

    assert {value(kind, source) for kind in names.MEMORY_KINDS for source in names.MEMORY_SOURCES} == {0}
    memory.append(replace(loaded(settings_for(folder), folder)[1], measured=MemoryUse(7, None, 9)))
    fit = memory[0].fit
    assert [value(kind, "predicted") for kind in names.MEMORY_KINDS] == [
        fit.weights_bytes,
        fit.activation_bytes,
        fit.kv_cache_bytes,
    ]
    assert [value(kind, "measured") for kind in names.MEMORY_KINDS] == [7, 0, 9]


@pytest.mark.parametrize(("share", "warns"), [(0.95, False), (0.96, True)])
def test_a_share_that_leaves_next_to_nothing_is_warned_about(
    folder: Path, caplog: pytest.LogCaptureFixture, share: float, warns: bool
) -> None:
    settings = replace(settings_for(folder), cache=CacheConfig(32, 1 << 20, share))
    with caplog.at_level(logging.WARNING):
        loaded(settings, folder)
    assert ("--gpu-memory-utilization" in caplog.text) is warns
