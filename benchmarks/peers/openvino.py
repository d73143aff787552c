"""OpenVINO GenAI in a process of its own, without HTTP: the Python that $OPENVINO_PYTHON names has `openvino-genai`.

It reads the f16 GGUF (`gguf_16bit`) and chooses its own arithmetic; `programs/openvino_pipeline.py` is what runs there.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.peers import gguf_16bit, lines
from benchmarks.peers.contestant import Contestant, Peer

_PROGRAM = Path(__file__).parent / "programs" / "openvino_pipeline.py"


def peer() -> Peer:
    return Peer("openvino", _missing, _run)


def _missing() -> str | None:
    python = os.environ.get("OPENVINO_PYTHON", "")
    if python and os.access(python, os.X_OK):
        return None
    return (
        "no OpenVINO: python3 -m venv DIR; DIR/bin/pip install openvino-genai openvino-tokenizers; "
        "OPENVINO_PYTHON=DIR/bin/python"
    )


def _run(model: str) -> AbstractContextManager[Contestant]:
    weights = gguf_16bit.converted(model, "f16")
    return lines.talking("openvino", [os.environ["OPENVINO_PYTHON"], str(_PROGRAM), str(weights)])
