"""One tiny model on disk and one server of it, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.api.running import Running, serving
from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context of 4096 tokens: long enough for an answer that is still running when a test acts on it."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Running]:
    with serving(tiny) as running:
        yield running


@pytest.fixture
def idle_server(server: Running) -> Iterator[Running]:
    """The shared server, which must hold nothing once the test is over."""
    yield server
    server.wait_idle()


@pytest.fixture(scope="session")
def tiny_context_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model whose context is 64 tokens, to run into its end."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("models") / "short", max_position_embeddings=64)
    with serving(folder) as running:
        yield running
