"""How late the server's event loop comes while many streams run: whatever blocks it, blocks every stream, /health and /ready.

    python -m benchmarks.loop_delay --tiny                 a random model of the tests: 200 streams of 200 tokens
    python -m benchmarks.loop_delay --tokens 20            the real one

The server runs in this process with one task more, which sleeps a millisecond at a time and notes how much later it was woken
(late; "streaming": of these, while all streams ran), and what processor time the loop's thread used since (own: on a busy machine,
that is what the loop itself is to blame for). For the looks that came later than the limit it says what the thread waited for: a
processor, the interpreter's lock, a search for garbage. The streams are read by another process. A small model makes steps short,
and so the loop busier than with any real one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import machine
from benchmarks.client import Target, replay
from benchmarks.lateness import Clocks, Look, reasons
from benchmarks.measure import quantile, summarise
from benchmarks.workloads import Prompt, Workload
from pagemill import model_source
from pagemill_server import cli, serve
from pagemill_server.engine.ports import EngineClient

TICK = 0.001  # seconds
LIMIT = 0.010  # seconds that are aimed at
LATEST = 20  # looks that are kept whole
BINS = (0.001, 0.002, 0.005, 0.010, 0.020, 0.050)  # upper bounds, seconds
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPT = "Tell me"


@dataclass(slots=True)
class Watch:
    """Looks, one a TICK."""

    num_streams: int
    looks: list[Look] = field(default_factory=list)  # from the first request to the last reply
    engine: EngineClient | None = None  # set while it is watched

    async def run(self) -> None:
        with Clocks().read() as clocks:
            while True:
                due = time.perf_counter() + TICK
                await asyncio.sleep(TICK)
                late, engine = max(0.0, time.perf_counter() - due), self.engine
                streaming = engine is not None and engine.stats.num_running == self.num_streams
                look = clocks.look(late, streaming=streaming)
                if engine is not None:
                    self.looks.append(look)

    def of_each(self) -> dict[str, list[float]]:
        """Seconds: how late each look was; those of these while all streams ran, when none arrives or ends; the loop's own."""
        streaming = [look.late for look in self.looks if look.streaming]
        return {
            "late": [look.late for look in self.looks],
            "streaming": streaming,
            "own": [look.own for look in self.looks],
        }


def measure(model: str, streams: int, tokens: int, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Serve, let the client read its streams twice (the first time warms up), stop. Raises RuntimeError where streams failed."""
    serve.raise_open_files()
    sys.setswitchinterval(serve.SWITCH)
    watch = Watch(streams)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, socket.create_server(("127.0.0.1", 0)) as port:
        said = runner.run(_serve(model, streams, tokens, flags, watch, port))
    if said["failed"]:
        raise RuntimeError(f"{said['failed']} streams failed: {said['errors']}")
    shown = {name: figures(values) for name, values in watch.of_each().items()}
    latest = sorted(watch.looks, key=lambda look: look.late, reverse=True)[:LATEST]
    why = {"why": reasons([look for look in watch.looks if look.streaming], LIMIT)}
    return (
        {"streams": streams, "tokens": tokens, "client": said}
        | shown
        | why
        | {"latest": [look.as_json() for look in latest]}
    )


async def _serve(
    model: str, streams: int, tokens: int, flags: Sequence[str], watch: Watch, listener: socket.socket
) -> dict[str, Any]:
    port = listener.getsockname()[1]
    settings = cli.parse([model, "--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(streams), *flags])
    life = serve.Life(settings, model_source.find(model))
    living = asyncio.create_task(life.live(listener))
    watching = asyncio.create_task(watch.run())
    try:
        while life.service.loaded is None:
            if living.done():
                await living
                raise RuntimeError("the server stopped while it started")
            await asyncio.sleep(0.05)
        command = [sys.executable, "-m", "benchmarks.loop_delay", "--client", f"http://127.0.0.1:{port}"]
        command += ["--model", model, "--streams", str(streams), "--tokens", str(tokens)]
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert client.stdout is not None
        await client.stdout.readline()  # it is warm
        watch.engine = life.service.loaded.engine
        said: dict[str, Any] = json.loads(await client.stdout.readline())
        watch.engine = None
        await client.wait()
    finally:
        watching.cancel()
        life.stop()
        life.stop()  # at once
        await living
    return said


def figures(values: Sequence[float]) -> dict[str, Any]:
    """Percentiles in ms, how many looks, and how many of them in each bin."""
    counted = [sum(low <= value < high for value in values) for low, high in _bins()]
    known = {f"p{100 * share:g}": 1000 * (quantile(values, share) or 0.0) for share in (0.5, 0.99, 0.999)}
    return known | {"max": 1000 * max(values, default=0.0), "looks": len(values), "bins": counted}


def _bins() -> list[tuple[float, float]]:
    return list(zip((0.0, *BINS), (*BINS, float("inf")), strict=True))


def read(url: str, model: str, streams: int, tokens: int) -> None:
    """The client's process: the streams, twice; a line after each."""
    workload = Workload("streams", "closed", True, streams, (), ())
    prompts = [Prompt((), f"{PROMPT} {number}", tokens) for number in range(streams)]
    for _ in range(2):
        run = summarise(asyncio.run(replay(Target(url, model), workload, prompts)))
        said = {"failed": run.failed, "errors": run.errors, "output_tok_s": run.output_tok_s, "wall_s": run.wall_s}
        print(json.dumps(said), flush=True)


def _tiny(folder: Path) -> str:
    from tests.server.tiny import write_tiny_llama

    return str(write_tiny_llama(folder))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tiny", action="store_true", help="the tests' random model instead, whose steps are short")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.client:
        read(args.client, args.model, args.streams, args.tokens)
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = machine.describe()
    print(here.line())
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(_tiny(Path(folder)) if args.tiny else args.model, args.streams, args.tokens)
    print(f"{args.streams} streams, {measured['client']['output_tok_s']:.0f} tokens/s")
    for name in ("late", "streaming", "own"):
        found = measured[name]
        shown = "  ".join(f"{key} {found[key]:.2f}" for key in ("p50", "p99", "p99.9", "max"))
        bins = "  ".join(f"<{1000 * high:g}: {count}" for (_, high), count in zip(_bins(), found["bins"], strict=True))
        print(f"{name:<9} ms: {shown}  of {found['looks']} looks\n          {bins}")
    print("\n".join(measured["why"]))
    if args.out:
        document = {"machine": here.as_json(), "model": args.model} | measured
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if measured["streaming"]["max"] <= 1000 * LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
