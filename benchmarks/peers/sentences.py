"""sentence-transformers in a process of its own, without HTTP; it is among our development extras."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.peers import lines
from benchmarks.peers.contestant import Contestant, Peer
from pagemill.model_files import resolve

_PROGRAM = Path(__file__).parent / "programs" / "sentence_encoder.py"


def peer(dtype: str) -> Peer:
    """Computing in float32, as it does unless it is told otherwise, or bfloat16."""
    name = "sentence-transformers" if dtype == "float32" else "sentence-transformers-bf16"
    return Peer(name, _missing, partial(_run, name, dtype), embeds=True)


def _missing() -> str | None:
    if importlib.util.find_spec("sentence_transformers") is not None:
        return None
    return "no sentence-transformers: pip install 'pagemill[dev]'"


def _run(name: str, dtype: str, model: str) -> AbstractContextManager[Contestant]:
    return lines.talking(name, [sys.executable, str(_PROGRAM), str(resolve(model)), dtype], embeds=True)
