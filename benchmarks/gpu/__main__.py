"""Everything that wants a GPU, in one command on a fresh machine (`make bench-gpu`).

    python -m benchmarks.gpu                                    Llama-2-7B's and Qwen3-8B's shapes, all parts
    python -m benchmarks.gpu --shapes qwen3-8b --parts logits,speed

Makes random models of these shapes (30 GB of disk in --folder, kept for the next run), then: the tests that want a GPU, the kernels
over their ceilings, logits against transformers, blocks as predicted, a utilisation of 0.99, batch 8 → 32 paged against contiguous,
and speed over HTTP beside vLLM where it is installed. Writes a JSON document a shape into benchmarks/results/. Exit code 1 where
something does not hold, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, own_server, record
from benchmarks.gpu import gpu_line, model_writer, serving
from benchmarks.gpu.shapes import LLAMA_2_7B, QWEN3_8B, SHAPES, Shape
from benchmarks.peers.contestant import PeerError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MODELS = Path.home() / ".cache" / "pagemill" / "random-models"
EXIT_FAILED, EXIT_NO_GPU = 1, 2


@dataclass(slots=True)
class Report:
    """What was found for one shape, and what of it does not hold."""

    found: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def keep(self, part: str, body: Any, holds: bool, words: str) -> None:
        self.found[part] = body
        print(f"  {part}: {words}{'' if holds else '  <- DOES NOT HOLD'}", flush=True)
        if not holds:
            self.broken.append(part)


def logits(shape: Shape, folder: Path, report: Report, args: argparse.Namespace) -> None:
    body = _program("benchmarks.gpu.logits", str(folder))
    holds = bool(body.get("holds"))
    words = (
        f"off by {body['ours']:.4f}, transformers in bfloat16 by {body['theirs']:.4f}"
        if "ours" in body
        else body["error"]
    )
    report.keep("logits", body, holds, words)


def blocks(shape: Shape, folder: Path, report: Report, args: argparse.Namespace) -> None:
    utilization = 0.9
    memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    with own_server.started(str(folder), [*serving.FLAGS, "--gpu-memory-utilization", str(utilization)]) as server:
        found = serving.Blocks(
            serving.predicted_blocks(folder, memory, utilization),
            serving.capacity(server.base_url)["kvBlocks"],
            utilization,
        )
        start = server.start_s
    words = f"{found.predicted} predicted, {found.served} served, started in {start:.1f} s"
    report.keep("blocks", asdict(found) | {"start_s": start}, found.equal, words)


def edge(shape: Shape, folder: Path, report: Report, args: argparse.Namespace) -> None:
    found = serving.at_the_edge(folder)
    report.keep("edge", asdict(found), found.in_order, "served" if found.served else f"{found.reason}: {found.message}")


def paged(shape: Shape, folder: Path, report: Report, args: argparse.Namespace) -> None:
    body = _program("benchmarks.gpu.paged", str(folder), "--reps", str(args.reps))
    if "error" in body:
        report.keep("paged", body, False, body["error"])
        return
    by_way: dict[str, list[dict[str, Any]]] = {}
    for one in body["results"]:
        by_way.setdefault(one["way"], []).append(one)
    words = "; ".join(
        f"{way} {max(one['most_at_once'] for one in runs)} at once, {_median([one['output_tok_s'] for one in runs]):.0f} tokens/s"
        for way, runs in by_way.items()
    )
    report.keep("paged", body, True, words)


def speed(shape: Shape, folder: Path, report: Report, args: argparse.Namespace) -> None:
    found: dict[str, Any] = {}
    with own_server.started(str(folder), [*serving.FLAGS]) as server:
        found["pagemill"] = serving.measure(server.base_url, str(folder), args.reps)
    found["weights_read_bytes_s"] = serving.bandwidth(shape, found["pagemill"]["w2"])
    try:
        with serving.vllm(folder) as base_url:
            found["vllm"] = serving.measure(base_url, str(folder), args.reps)
    except PeerError as error:
        found["vllm_missing"] = str(error)
    failed = sum(run["failed"] for runs in found["pagemill"].values() for run in runs)
    report.keep("speed", found, not failed, f"{failed} requests failed")
    print(table(found), flush=True)
    if "vllm_missing" in found:
        print(f"  {found['vllm_missing']}")


PARTS: dict[str, Callable[[Shape, Path, Report, argparse.Namespace], None]] = {
    "logits": logits,
    "blocks": blocks,
    "edge": edge,
    "paged": paged,
    "speed": speed,
}
# Those of no shape.
BEFORE = ("tests", "kernels")


def table(found: dict[str, Any]) -> str:
    """Medians of our figures and vLLM's, for people."""
    headings = ["workload", "server", "tokens/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms"]
    rows = []
    for name in serving.WORKLOADS:
        for server in ("pagemill", "vllm"):
            if runs := found.get(server, {}).get(name):
                cells = [_cell(runs, "output_tok_s", 1.0)]
                cells += [_cell(runs, key, 1e3) for key in ("ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s")]
                rows.append([name, server, *cells])
    return record.table(headings, rows)


def _cell(runs: list[dict[str, Any]], key: str, scale: float) -> str:
    values = [run[key] for run in runs if run[key] is not None]
    return f"{_median(values) * scale:.1f}" if values else "-"


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _program(module: str, *args: str) -> dict[str, Any]:
    """What it prints last, as JSON; or {"error": the end of what it says}."""
    done = subprocess.run([sys.executable, "-m", module, *args], cwd=ROOT, capture_output=True, text=True)
    try:
        body: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"{module} ended with exit code {done.returncode}: {done.stderr[-600:]}"}
    return body


def run_tests() -> tuple[dict[str, Any], bool]:
    """The tests that want a GPU."""
    call = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/kernels", "tests/server"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    if done.returncode:
        print(done.stdout[-6000:])
    return {"summary": last[0]}, done.returncode == 0


def run_kernels() -> tuple[dict[str, Any], bool]:
    """Each kernel over the ceilings of the machine: `benchmarks.kernels_gpu` writes a document of its own."""
    out = RESULTS / "gpu-kernels.json"
    done = subprocess.run([sys.executable, "-m", "benchmarks.kernels_gpu", "--out", str(out)], cwd=ROOT)
    return {"summary": f"exit code {done.returncode}", "document": out.name}, done.returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    if (needed := gpu_line.missing()) is not None:
        sys.stderr.write(f"benchmarks.gpu {needed}\n")
        return EXIT_NO_GPU
    here, gpu = machine.describe(), gpu_line.describe()
    print(f"{here.line()}\n{gpu.line()}", flush=True)
    before, broken = {}, []
    for name, run in (("tests", run_tests), ("kernels", run_kernels)):
        if name in args.parts:
            before[name], holds = run()
            print(f"{name}: {before[name]['summary']}", flush=True)
            broken += [] if holds else [name]
    for shape in args.shapes:
        print(f"{shape.name}: {shape.parameters / 1e9:.2f} billion parameters, {shape.bytes / 1e9:.1f} GB", flush=True)
        folder, report = model_writer.write(shape, args.folder, torch.device("cuda")), Report(dict(before))
        torch.cuda.empty_cache()
        for part in (part for part in PARTS if part in args.parts):
            try:
                PARTS[part](shape, folder, report, args)
            except own_server.ServerError as error:
                report.keep(part, {"error": str(error)}, False, str(error))
        broken += [f"{shape.name}: {part}" for part in report.broken]
        out = args.out / f"gpu-{shape.name}-{file_name(gpu.name)}.json"
        record.write(out, here, {"gpu": asdict(gpu), "gpu_line": gpu.line(), "shape": asdict(shape), **report.found})
        print(f"written: {out}", flush=True)
    print("everything holds" if not broken else f"does not hold: {', '.join(broken)}")
    return EXIT_FAILED if broken else 0


def file_name(gpu: str) -> str:
    """NVIDIA H100 80GB HBM3 → h100-80gb-hbm3."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia ")).strip("-")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="Measures and checks everything that wants a GPU, in one run."
    )
    default = ",".join(shape.name for shape in (LLAMA_2_7B, QWEN3_8B))
    every = ",".join((*BEFORE, *PARTS))
    parser.add_argument("--shapes", metavar="A,B", default=default, help=f"of {', '.join(SHAPES)} (default: {default})")
    parser.add_argument("--parts", metavar="A,B", default=every, help=f"default: {every}")
    parser.add_argument("--folder", metavar="FOLDER", type=Path, default=MODELS, help=f"for models (default: {MODELS})")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=RESULTS, help="for what was found")
    parser.add_argument("--reps", type=int, default=3, help="repetitions of what is timed (default: 3)")
    args = parser.parse_args(argv)
    args.parts = args.parts.split(",")
    for unknown in set(args.parts) - {*BEFORE, *PARTS}:
        parser.error(f"there is no part {unknown!r}; these are: {every}")
    for unknown in set(args.shapes.split(",")) - SHAPES.keys():
        parser.error(f"there is no shape {unknown!r}; these are: {', '.join(SHAPES)}")
    args.shapes = [SHAPES[name] for name in args.shapes.split(",")]
    if args.reps < 1:
        parser.error("--reps must be at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())
