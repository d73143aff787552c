"""Prometheus' program, and three real servers of a tiny model: two replicas of one deployment, one of its neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pagemill_server.config import CacheConfig, ModelOptions, SchedulerConfig, ServerConfig
from pagemill_server.settings import Settings
from tests.prometheus.program import NotPossibleHere, prometheus
from tests.server.api.running import NAME, Running, serving
from tests.server.tiny import write_tiny_llama

FIRST, SECOND = "chat-7d9f6b54c8-x2k9z", "chat-7d9f6b54c8-bb4lm"
NEIGHBOUR = "chat-b-5c4d8f7b96-qw7rt"  # of the deployment chat-b
CONTEXT = 32768  # tokens


@pytest.fixture(scope="session")
def program() -> str:
    try:
        return prometheus()
    except NotPossibleHere as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=CONTEXT)


def settings() -> Settings:
    """One runs at a time, so that it is easy to make others wait."""
    return Settings(
        ModelOptions(model=NAME, served_names=(NAME,)),
        CacheConfig(memory_bytes=64 << 20),
        SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64),
        ServerConfig(),
    )


@pytest.fixture(scope="session")
def servers(model: Path) -> Iterator[dict[str, Running]]:
    """By pod. Unhurried: a stream is still running when a test has looked at it from all sides."""
    with ExitStack() as stack:
        found = {pod: stack.enter_context(serving(model, settings=settings())) for pod in (FIRST, SECOND, NEIGHBOUR)}
        for server in found.values():
            server.unhurried()
        yield found
