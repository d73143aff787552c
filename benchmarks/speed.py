"""Our server beside every peer that is installed, on one machine, in one run: the table that `make bench` prints.

    python -m benchmarks.speed                              everything: start, w1 to w5, with a roofline of this machine
    python -m benchmarks.speed w1 w3 --peers llamacpp       some figures, some peers
    python -m benchmarks.speed w2 --reps 5 -- --dtype float32     flags after -- go to `pagemill serve`

All contestants are started first and wait; then each repetition of a workload goes to them in turn, after the machine has become
quiet. Repetition k replays variant k for everybody. What others did to the machine meanwhile is written beside each run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine, roofline, speed_figures
from benchmarks.peers import ours, process, registry
from benchmarks.peers.contestant import Peer
from benchmarks.speed_figures import INT8, OURS
from benchmarks.speed_run import Bench, Plan
from pagemill.failures import PagemillError

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
EMBEDDING_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
WHAT = ("start", "w1", "w2", "w3", "w4", "w5")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 when ours could not be measured, 2 for a wrong call."""
    args = parse(sys.argv[1:] if argv is None else argv)
    here = machine.describe()
    print(here.line())
    peers = installed(args.peers, args.what)
    rates = None if args.no_roofline else roofline.measure()
    if rates is not None:
        print(rates.line(), flush=True)
    plan = Plan(args.model, args.embedding_model, args.reps, args.open_reps, args.requests, args.patience)
    bench = Bench(plan, rates)
    try:
        with ExitStack() as stack:
            if "start" in args.what:
                bench.starts([*contestants(args), *(peer for peer in peers if not peer.embeds)])
            generating = [name for name in args.what if name in ("w1", "w2", "w3", "w4")]
            if generating:
                everybody = [*contestants(args), *(peer for peer in peers if not peer.embeds)]
                asyncio.run(bench.workloads(stack, everybody, generating))
        if "w5" in args.what:
            everybody = [ours.embedding(OURS, args.server_flags), *(peer for peer in peers if peer.embeds)]
            asyncio.run(bench.sentences(everybody))
    except PagemillError as error:
        sys.stderr.write(f"benchmarks.speed: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    lines = speed_figures.table(bench.names, bench.values)
    print("\n".join(["", *lines]))
    if args.out:
        document = {"machine": here.as_json(), "roofline": rates.as_json() if rates else None, "table": lines}
        document |= {"flags": args.server_flags, "plan": asdict(plan)} | bench.as_json()
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if OURS in bench.names else 1


def contestants(args: argparse.Namespace) -> list[Peer]:
    """Ours: with the flags that were given, and with int8 weights beside it for W2."""
    own = [ours.generating(OURS, args.server_flags)]
    if args.int8 and "w2" in args.what:
        own.append(ours.generating(INT8, [*args.server_flags, "--quantization", "int8"]))
    return own


def installed(names: list[str] | None, what: list[str]) -> list[Peer]:
    """Those that are there, of those that are asked for; says of the others how they would be."""
    found = []
    for name, peer in registry.peers().items():
        if (names is not None and name not in names) or (peer.embeds and "w5" not in what):
            continue
        if (why := peer.missing()) is not None:
            print(f"not measured: {name}: {why}")
        else:
            found.append(peer)
    return found


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the flags; ends with exit code 2 and a line for a wrong call."""
    own, server_flags = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(prog="benchmarks.speed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", metavar="FIGURE", help=f"of {', '.join(WHAT)} (default: all)")
    parser.add_argument("--peers", metavar="A,B", help=f"of {', '.join(registry.peers())} (default: what is installed)")
    parser.add_argument("--reps", type=int, default=3, help="repetitions of each workload (default: 3)")
    parser.add_argument("--open-reps", type=int, help="of w4, which takes a minute each (default: as --reps)")
    parser.add_argument("--requests", type=int, help="only the first so many of each workload: to try this out")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--embedding-model", default=EMBEDDING_MODEL)
    parser.add_argument("--no-int8", dest="int8", action="store_false", help="leave out int8 weights")
    parser.add_argument("--no-roofline", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every run as JSON")
    args = parser.parse_args(own)
    args.server_flags = server_flags
    args.what = args.what or list(WHAT)
    args.peers = args.peers.split(",") if args.peers is not None else None
    args.open_reps = args.open_reps or args.reps
    for kind, named, known in (("figure", args.what, WHAT), ("peer", args.peers or (), registry.peers())):
        if unknown := [name for name in named if name and name not in known]:
            parser.error(f"there is no {kind} {unknown[0]!r}; these are: {', '.join(known)}")
    if args.reps < 1:
        parser.error("--reps must be at least 1")
    return args


if __name__ == "__main__":
    process.end_cleanly()
    sys.exit(main())
