"""Measures an OpenAI-compatible server: a row per workload, or two servers side by side.

    python benchmarks/serve.py                                            our own server, started and stopped here
    python benchmarks/serve.py --workloads w1,w2 --reps 5 -- --dtype float32     … with flags of `pagemill serve`
    python benchmarks/serve.py --base-url http://127.0.0.1:8000 --model NAME --workload FILE …
    python benchmarks/serve.py --base-url URL --model NAME --versus URL2 --versus-model NAME2     runs A B A B …

Repetition k replays variant k of a workload, on both servers. It talks to loopback addresses alone, unless --allow-remote is given.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import sys
import urllib.parse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import codec, machine, own_server, report, traces, workload_file, workloads
from benchmarks.client import Target, replay
from benchmarks.measure import Run, summarise
from benchmarks.workloads import Workload
from pagemill.failures import PagemillError

DEMO_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_WORKLOADS = "w1,w2,w3,w4"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 when a request or the server failed, 2 for a wrong call."""
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        chosen = load_workloads(args)
        with ExitStack() as stack:
            own = None
            if args.base_url is None:
                own = stack.enter_context(own_server.started(args.model, args.server_flags))
            targets = {"A": Target(own.base_url if own else args.base_url, args.model, args.prompt, args.ignore_eos)}
            if args.versus:
                targets["B"] = replace(targets["A"], base_url=args.versus, model=args.versus_model)
            document = asyncio.run(measure(targets, chosen, args.reps))
    except (PagemillError, workload_file.WorkloadError, own_server.ServerError) as error:
        sys.stderr.write(f"benchmarks/serve.py: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if own:
        print(f"start {own.start_s:.1f} s, peak memory {own.peak_bytes / 1e9:.1f} GB, server log {own.log}")
        document["server"] = {"start_s": own.start_s, "peak_bytes": own.peak_bytes, "flags": args.server_flags}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(run["failed"] for entry in document["results"] for run in entry["runs"]) else 0


async def measure(targets: dict[str, Target], chosen: list[Workload], reps: int) -> dict[str, Any]:
    """Warm up and replay every workload on every server in turn, printing rows as they come."""
    here = machine.describe()
    print(here.line())
    for label, target in targets.items():
        print(f"{label}: {target.model} at {target.base_url}")
    print(report.header(), flush=True)
    results: list[dict[str, Any]] = []
    for workload in chosen:
        runs: dict[str, list[Run]] = {label: [] for label in targets}
        for target in targets.values():
            await replay(target, replace(workload, kind="closed", concurrency=4), workload.warmup)
        for rep in range(reps):
            for label, target in targets.items():
                prompts = workload.variants[rep % len(workload.variants)]
                runs[label].append(summarise(await replay(target, workload, prompts)))
        for label, measured in runs.items():
            print(report.row(workload.name, label, measured), flush=True)
            results.append({"workload": workload.name, "server": label, "runs": report.as_json(measured)})
            for message in sorted({error for run in measured for error in run.errors}):
                print(f"  failed: {message}", flush=True)
            if short := sum(run.short for run in measured):
                print(f"  {short} replies have another length than they asked for", flush=True)
        if len(targets) == 2:
            print(report.ratio_row(workload.name, runs["A"], runs["B"]), flush=True)
    models = {label: target.model for label, target in targets.items()}
    return {"machine": here.as_json(), "models": models, "reps": reps, "results": results}


def load_workloads(args: argparse.Namespace) -> list[Workload]:
    """The files and traces that are named, and the standard workloads that are asked for."""
    chosen = [workload_file.read(path) for path in args.workload]
    recorded = {path.name.partition(".")[0]: traces.read(path) for path in args.trace}
    names = args.workloads if args.workloads is not None else ("" if chosen or recorded else DEFAULT_WORKLOADS)
    wanted = [name for name in names.split(",") if name]
    if wanted or recorded:
        tokenizer = codec.load(args.tokenizer or args.model)
        chosen += [workloads.STANDARD[name](tokenizer, args.seed) for name in wanted]
        cut = traces.Cut(
            args.trace_start, args.trace_seconds, args.trace_slowdown, args.trace_shrink, args.trace_longest
        )
        chosen += [traces.workload(name, rows, cut, tokenizer, args.seed) for name, rows in recorded.items()]
    return chosen


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the flags; ends with exit code 2 and a line for a wrong call."""
    own, server_flags = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(
        prog="benchmarks/serve.py",
        description=(__doc__ or "").partition("\n")[0],
        epilog="What follows -- goes to `pagemill serve`, where the server is started here.",
    )
    parser.add_argument("--base-url", metavar="URL", help="without /v1; left out: start `pagemill serve` here")
    parser.add_argument("--model", default=DEMO_MODEL, help=f"its name at the server (default: {DEMO_MODEL})")
    parser.add_argument("--versus", metavar="URL2", help="a second server, measured in turn with the first")
    parser.add_argument("--versus-model", metavar="NAME2", help="the model's name there (default: as --model)")
    parser.add_argument("--workload", metavar="FILE", type=Path, nargs="+", default=[], help="recorded workloads")
    parser.add_argument("--workloads", metavar="w1,w2", help=f"standard ones (default: {DEFAULT_WORKLOADS})")
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="whose tokens the standard workloads count (default: --model)"
    )
    _add_trace_flags(parser)
    parser.add_argument("--seed", type=int, default=workloads.SEED, help="of the standard workloads")
    parser.add_argument("--reps", type=int, default=3, help="repetitions of each workload (default: 3)")
    parser.add_argument("--prompt", choices=("text", "ids"), default="text", help="send text or token ids")
    parser.add_argument(
        "--no-ignore-eos", dest="ignore_eos", action="store_false", help="let replies end before their length"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every figure as JSON")
    parser.add_argument("--allow-remote", action="store_true", help="also talk to addresses that are not loopback")
    args = parser.parse_args(own)
    args.server_flags = server_flags
    args.versus_model = args.versus_model or args.model
    if args.reps < 1:
        parser.error("--reps must be at least 1")
    if server_flags and args.base_url:
        parser.error("flags after -- are for a server that is started here: leave out --base-url")
    unknown = [name for name in (args.workloads or "").split(",") if name and name not in workloads.STANDARD]
    if unknown:
        parser.error(f"there is no workload {unknown[0]!r}; these are: {', '.join(workloads.STANDARD)}")
    for flag, url in (("--base-url", args.base_url), ("--versus", args.versus)):
        if url is not None:
            _check_url(parser, flag, url, args.allow_remote)
    args.base_url, args.versus = (url.rstrip("/") if url else url for url in (args.base_url, args.versus))
    return args


def _add_trace_flags(parser: argparse.ArgumentParser) -> None:
    cut = traces.Cut()
    group = parser.add_argument_group("recorded traces (benchmarks/README.md names their public sources)")
    group.add_argument(
        "--trace", metavar="FILE", type=Path, nargs="+", default=[], help="Azure CSV or Mooncake JSON lines"
    )
    for flag, default, text in (
        ("--trace-start", cut.start, "seconds into the trace"),
        ("--trace-seconds", cut.seconds, "seconds of the trace"),
        ("--trace-slowdown", cut.slowdown, "arrivals are so many times further apart"),
        ("--trace-shrink", cut.shrink, "lengths are multiplied by this"),
    ):
        group.add_argument(flag, metavar="N", type=float, default=default, help=f"{text} (default: {default:g})")
    group.add_argument(
        "--trace-longest",
        metavar="TOKENS",
        type=int,
        default=cut.longest,
        help=f"longer requests are left out (default: {cut.longest})",
    )


def _check_url(parser: argparse.ArgumentParser, flag: str, url: str, allow_remote: bool) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        parser.error(f"{flag} {url!r} is not an http(s) address")
    if not allow_remote and not is_loopback(parts.hostname):
        parser.error(f"{flag} {url!r} is not on this machine: add --allow-remote if you mean it")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its address alone; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
