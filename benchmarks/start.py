"""Where the time of a start goes, from the start of the process to the first token, on a warm disk; and what peers take.

    python -m benchmarks.start [--reps 3] [--peers llamacpp,openvino]     on this machine
    python -m benchmarks.start --cluster     from `kubectl apply` to Ready, on the tests' cluster (root)

The parts of ours are seen from outside: a server answers /ready from the moment it listens and says there in which phase it is.
Two more are of interpreters of their own, started for them: Python alone, and one that imports torch and nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, quiet, record, speed
from benchmarks.own_server import readiness
from benchmarks.peers import http_server, process
from benchmarks.peers.contestant import Peer, PeerError
from pagemill.endpoints import READY_PATH

LISTENING, TORCH, WEIGHTS, WARMUP, READY, TOKEN = PARTS = (
    "interpreter, imports, config, until it listens",
    "tokenizer, templates, torch's import",
    "weights",
    "first step, cache",
    "until it says that it is ready",
    "first token",
)
# The phase that /ready says, and the part that has ended once it is seen, or a later one.
_ENDS = (("Starting", LISTENING), ("LoadingWeights", TORCH), ("Warmup", WEIGHTS), ("Serving", WARMUP))
_LOOK = 0.005  # seconds


def parts_of(seen: Sequence[tuple[float, str]], ready_s: float, token_s: float) -> dict[str, float]:
    """Seconds of each part, from when each phase was first seen. A phase that was too short to be seen takes 0."""
    order = [phase for phase, _ in _ENDS]
    ends = {}
    for phase, part in _ENDS:
        later = [at for at, said in seen if said in order and order.index(said) >= order.index(phase)]
        ends[part] = min(later, default=ready_s)
    ends |= {READY: ready_s, TOKEN: token_s}
    before, parts = 0.0, {}
    for part in PARTS:
        parts[part] = max(0.0, ends[part] - before)
        before = max(before, ends[part])
    return parts


def start_ours(model: str, flags: Sequence[str]) -> dict[str, float]:
    """One start, watched. Raises PeerError."""
    port = http_server.free_port()
    base = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pagemill", "serve", model, "--host", "127.0.0.1", "--port", str(port), *flags]
    began = time.perf_counter()
    seen: list[tuple[float, str]] = []
    with process.started("start", command, {"OMP_WAIT_POLICY": "PASSIVE"}) as (running, log):
        ready = False
        while not ready:
            if running.poll() is not None:
                raise PeerError(f"it ended with exit code {running.returncode} (log {log}):\n{process.tail(log)}")
            ready, phase = _ask(base + READY_PATH)
            at = time.perf_counter() - began
            if phase and (not seen or seen[-1][1] != phase):
                seen.append((at, phase))
            time.sleep(0 if ready else _LOOK)
        ready_s = time.perf_counter() - began
        http_server.first_answer(base, model)
        return parts_of(seen, ready_s, time.perf_counter() - began)


def interpreter_s(program: str) -> float:
    """Of a Python of its own that runs this."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=kept | {"OMP_WAIT_POLICY": "PASSIVE"})
    return time.perf_counter() - began


def measure(model: str, flags: Sequence[str], peers: Iterable[Peer], reps: int, patience: float) -> dict[str, Any]:
    """In turn, the first round not counted: it only warms the disk's cache."""
    ours: list[dict[str, float]] = []
    alone: dict[str, list[float]] = {"python": [], "python, import torch": []}
    theirs: dict[str, list[float]] = {}
    for rep in range(reps + 1):
        quiet.wait(patience=patience)
        parts = start_ours(model, flags)
        times = {"python": interpreter_s("pass"), "python, import torch": interpreter_s("import torch")}
        if rep:
            ours.append(parts)
            for name, seconds in times.items():
                alone[name].append(seconds)
        for peer in peers:
            quiet.wait(patience=patience)
            with peer.run(model) as running:
                if rep:
                    theirs.setdefault(peer.name, []).append(running.first_token_s)
    return {"ours": ours, "alone": alone, "peers": theirs}


def table(figures: dict[str, Any]) -> str:
    """Medians."""
    ours = figures["ours"]
    rows = [[part, _cell([parts[part] for parts in ours])] for part in PARTS]
    rows.append(["**ours, to the first token**", _cell([sum(parts.values()) for parts in ours])])
    rows += [[f"{name}, to the first token", _cell(seconds)] for name, seconds in figures["peers"].items()]
    rows += [[f"{name} (a process of its own)", _cell(seconds)] for name, seconds in figures["alone"].items()]
    return record.table(["part", "seconds (least-most)"], rows)


def _cell(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def _ask(url: str) -> tuple[bool, str]:
    body = readiness(url)
    return bool(body.get("ready")), str(body.get("phase", ""))


def main(argv: list[str] | None = None) -> int:
    """One run; 1 where something did not start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=speed.MODEL)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--peers", metavar="A,B", help="(default: what is installed)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--cluster", action="store_true", help="from kubectl apply to Ready instead")
    parser.add_argument("--out", type=Path, metavar="FILE")
    argv = sys.argv[1:] if argv is None else argv
    own, flags = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    args = parser.parse_args(own)
    here = machine.describe()
    print(here.line(), flush=True)
    if args.cluster:
        from benchmarks import start_cluster

        return start_cluster.run(args.reps, args.out, here)
    peers = speed.installed(args.peers.split(",") if args.peers is not None else None, ["start"])
    try:
        figures = measure(args.model, flags, peers, args.reps, args.patience)
    except PeerError as error:
        sys.stderr.write(f"benchmarks.start: {error}\n")
        return 1
    print(table(figures))
    if args.out:
        record.write(args.out, here, figures)
    return 0


if __name__ == "__main__":
    process.end_cleanly()
    sys.exit(main())
