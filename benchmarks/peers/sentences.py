"""sentence-transformers in a process of its own, without HTTP; it is among our development extras."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.peers import lines
from benchmarks.peers.contestant import Contestant, Peer
from pagemill.model_files import resolve

_PROGRAM = Path(__file__).parent / "programs" / "sentence_encoder.py"


def peer() -> Peer:
    return Peer("sentence-transformers", _missing, _run, embeds=True)


def _missing() -> str | None:
    if importlib.util.find_spec("sentence_transformers") is not None:
        return None
    return "no sentence-transformers: pip install 'pagemill[dev]'"


def _run(model: str) -> AbstractContextManager[Contestant]:
    return lines.talking("sentence-transformers", [sys.executable, str(_PROGRAM), str(resolve(model))], embeds=True)
