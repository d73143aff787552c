"""From files to an engine: what is refused on the way, and how its progress shows."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server.config import CacheConfig
from pagemill_server.lifecycle import Lifecycle, Phase
from pagemill_server.loading import load
from tests.server.api.running import settings_for
from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_progress_and_capacity(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lifecycle = Lifecycle()
    with caplog.at_level(logging.INFO):
        model = load(settings_for(folder), inspect(folder), lifecycle)
    assert lifecycle.phase is Phase.WARMUP
    assert lifecycle.bytes_loaded == lifecycle.bytes_total > 0
    assert lifecycle.capacity is not None
    assert lifecycle.capacity.kv_blocks == model.limits.num_blocks
    told = [record.getMessage() for record in caplog.records if "loading weights" in record.getMessage()]
    assert len(told) <= 11
    assert told[-1].startswith("loading weights: 100% of ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"load_format": "gguf"}, FailureReason.INVALID_CONFIGURATION),
        ({"max_model_len": 10**6}, FailureReason.INVALID_CONFIGURATION),
    ],
)
def test_settings_that_do_not_suit_the_model(folder: Path, change: dict[str, object], reason: FailureReason) -> None:
    settings = settings_for(folder)
    settings = replace(settings, model=replace(settings.model, **change))  # type: ignore[arg-type]
    with pytest.raises(PagemillError) as error:
        load(settings, inspect(folder), Lifecycle())
    assert error.value.failure.reason is reason


def test_a_cache_too_small_says_what_would_do(folder: Path) -> None:
    settings = replace(settings_for(folder), cache=CacheConfig(memory_bytes=1000))
    with pytest.raises(PagemillError) as error:
        load(settings, inspect(folder), Lifecycle())
    assert error.value.failure.reason is FailureReason.KV_CACHE_TOO_SMALL
    assert error.value.failure.suggestion


def test_a_machine_without_the_memory(folder: Path) -> None:
    """A cache of an exbibyte: the allocation itself fails, and says so."""
    settings = replace(settings_for(folder), cache=CacheConfig(memory_bytes=1 << 60))
    with pytest.raises(PagemillError) as error:
        load(settings, inspect(folder), Lifecycle())
    assert error.value.failure.reason is FailureReason.OUT_OF_MEMORY


def test_a_broken_template_is_a_broken_model(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(PagemillError) as error:
        load(settings_for(folder), inspect(folder), Lifecycle())
    assert error.value.failure.reason is FailureReason.MODEL_INVALID
