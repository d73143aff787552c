"""A tiny model on disk for the benchmarks that load one."""

from pathlib import Path

import pytest

from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Thirty requests in Azure's format, one of them much longer than the others."""
    lengths = [(30 + 3 * at, 4 + at % 7) for at in range(29)] + [(200, 8)]
    rows = [f"2023-11-16 18:15:{at:02}.0,{prompt},{output}" for at, (prompt, output) in enumerate(lengths)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return str(path)
