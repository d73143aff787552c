"""The example of the Python API runs, on tiny models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import write_tiny_encoder

PROGRAM = Path(__file__).parents[2] / "examples" / "offline.py"


def test_it_generates_chats_and_embeds(tmp_path: Path) -> None:
    generator = write_tiny_llama(tmp_path / "generator")
    embedder = write_tiny_encoder(tmp_path / "embedder")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(generator), str(embedder)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    for expected in ("The capital of France is", "colour 0: ", "colour 1: ", "There is a kitten on the rug."):
        assert expected in done.stdout
