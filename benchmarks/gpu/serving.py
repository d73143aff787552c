"""Our server on a GPU, over HTTP: its memory as predicted, the most of it that may be ours, and how fast it answers beside vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import codec, own_server, workloads
from benchmarks.client import Target, replay
from benchmarks.gpu.shapes import BFLOAT16, Shape
from benchmarks.measure import Run, summarise
from benchmarks.peers import http_server
from benchmarks.peers.contestant import PeerError
from pagemill.endpoints import READY_PATH, TERMINATION_LOG_ENV
from pagemill.failures import FailureReason, parse_termination
from pagemill.memory_fit import FitRequest, fit
from pagemill.model_files import inspect

MAX_MODEL_LEN, MAX_SEQS, MAX_TOKENS, BLOCK = 4096, 64, 2048, 16
FLAGS = (
    *("--device", "cuda", "--block-size", str(BLOCK), "--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", str(MAX_TOKENS)),
)
WORKLOADS = ("w1", "w1x64", "w2", "w3", "w4")
# What a start at a utilisation that is too high may end with, and nothing else.
TYPED = (FailureReason.CUDA_OUT_OF_MEMORY, FailureReason.KV_CACHE_TOO_SMALL)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Predicted without a GPU, from its size alone, and as the server has them."""

    predicted: int
    served: int
    utilization: float

    @property
    def equal(self) -> bool:
        return self.predicted == self.served


@dataclass(frozen=True, slots=True)
class Edge:
    """A start at the highest utilisation."""

    utilization: float
    served: bool
    reason: str | None  # why not
    message: str | None

    @property
    def in_order(self) -> bool:
        return self.served or self.reason in TYPED


def predicted_blocks(folder: Path, memory: int, utilization: float) -> int:
    """What the operator would reckon; `memory` is the GPU's, in bytes."""
    request = FitRequest(
        config=inspect(folder).config,
        dtype_bytes=BFLOAT16,
        memory_bytes=memory,
        utilization=utilization,
        block_size=BLOCK,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_TOKENS,
        max_num_seqs=MAX_SEQS,
    )
    return fit(request).num_blocks


def capacity(base_url: str) -> dict[str, Any]:
    """What /ready says of the memory."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(base_url + READY_PATH, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())["capacity"]
    return found


def at_the_edge(folder: Path, utilization: float = 0.99) -> Edge:
    """Serve at it, or end with a reason of `TYPED`."""
    with tempfile.TemporaryDirectory() as scratch:
        line = Path(scratch) / "termination"
        try:
            with (
                _told_to(line),
                own_server.started(str(folder), [*FLAGS, "--gpu-memory-utilization", str(utilization)]) as server,
            ):
                run = speed_of(server.base_url, str(folder), "w1")
        except own_server.ServerError as error:
            failure = parse_termination(line.read_text(encoding="utf-8")) if line.exists() else None
            if failure is None:
                return Edge(utilization, False, None, str(error)[-600:])
            return Edge(utilization, False, failure.reason.value, failure.message)
    if run.failed:
        return Edge(utilization, False, None, "; ".join(run.errors))
    return Edge(utilization, True, None, None)


@contextmanager
def _told_to(line: Path) -> Iterator[None]:
    """Servers that are started here write there why they ended."""
    before = os.environ.get(TERMINATION_LOG_ENV)
    os.environ[TERMINATION_LOG_ENV] = str(line)
    try:
        yield
    finally:
        os.environ.pop(TERMINATION_LOG_ENV)
        if before is not None:
            os.environ[TERMINATION_LOG_ENV] = before


def speed_of(base_url: str, model: str, name: str, variant: int = 0) -> Run:
    """One workload, once. "w1x64" is w1 with as many clients as the server takes."""
    standard, _, clients = name.partition("x")
    workload = workloads.STANDARD[standard](codec.load(model), workloads.SEED)
    if clients:
        workload = replace(workload, concurrency=int(clients))
    return summarise(asyncio.run(replay(Target(base_url, model, prompt="ids"), workload, workload.variants[variant])))


def measure(base_url: str, model: str, reps: int) -> dict[str, list[dict[str, Any]]]:
    """Every workload, after a variant of its own that warms it up."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in WORKLOADS:
        speed_of(base_url, model, name, workloads.VARIANTS - 1)
        found[name] = [asdict(speed_of(base_url, model, name, rep)) for rep in range(reps)]
    return found


def bandwidth(shape: Shape, runs: Sequence[dict[str, Any]]) -> float | None:
    """Bytes of weights a second that a lone stream (w2) reads: a share of the GPU's memory bandwidth at most."""
    times = sorted(run["tpot_p50_s"] for run in runs if run["tpot_p50_s"])
    return shape.read_per_token / times[len(times) // 2] if times else None


def vllm_program() -> str | None:
    """`vllm` beside the Python that $VLLM_PYTHON names, or on PATH."""
    if python := os.environ.get("VLLM_PYTHON"):
        beside = Path(python).parent / "vllm"
        return str(beside) if beside.exists() else None
    return shutil.which("vllm")


@contextmanager
def vllm(folder: Path) -> Iterator[str]:
    """vLLM with the same bounds, its address. Raises PeerError."""
    program = vllm_program()
    if program is None:
        raise PeerError("vllm is not installed: pip install vllm, or name its Python in $VLLM_PYTHON")
    flags = [
        *("serve", str(folder), "--served-model-name", str(folder), "--dtype", "bfloat16"),
        *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_SEQS)),
        *("--max-num-batched-tokens", str(MAX_TOKENS), "--gpu-memory-utilization", "0.9"),
    ]
    ports: list[int] = []

    def command(port: int) -> list[str]:
        ports.append(port)
        return [program, *flags, "--port", str(port)]

    environ = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with http_server.serving("vllm", command, model=str(folder), ready_path="/health", environ=environ):
        yield f"http://127.0.0.1:{ports[0]}"
