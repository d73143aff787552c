"""llama.cpp's server: `llama-server` on PATH, or the program that $LLAMA_SERVER names.

16 slots of 1,024 tokens share a cache of 16,384; continuous batching, two threads. Weights as f16 or bf16 (`gguf_16bit`).
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager

from benchmarks.peers import gguf_16bit, http_server
from benchmarks.peers.contestant import Contestant, Peer

_FLAGS = ("-t", "2", "-tb", "2", "-np", "16", "-cb", "-c", "16384")


def peer(kind: gguf_16bit.Kind) -> Peer:
    name = "llamacpp" if kind == "f16" else f"llamacpp-{kind}"
    return Peer(name, _missing, lambda model: _serve(name, model, kind))


def _program() -> str | None:
    return os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")


def _missing() -> str | None:
    if (program := _program()) is not None and os.access(program, os.X_OK):
        return None
    return (
        "no llama-server: build it from https://github.com/ggml-org/llama.cpp (cmake -DCMAKE_BUILD_TYPE=Release, target "
        "llama-server) and put it on PATH or into $LLAMA_SERVER"
    )


def _serve(name: str, model: str, kind: gguf_16bit.Kind) -> AbstractContextManager[Contestant]:
    weights, program = gguf_16bit.converted(model, kind), _program()
    assert program is not None, "asked for without looking whether it is there"
    return http_server.serving(
        name,
        lambda port: [program, "-m", str(weights), *_FLAGS, "--host", "127.0.0.1", "--port", str(port)],
        model=model,
        ready_path="/health",
    )
