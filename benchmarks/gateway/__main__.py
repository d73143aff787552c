"""The command: both measurements, direct and through the gateway in one run, as tables and JSON.

    python -m benchmarks.gateway --out benchmarks/results/gateway.json

The replica, the gateway and the client are a process each and share the machine's cores: figures of a busy machine are the
machine's. Which streams one gateway carries is read off: the last line where nothing failed and events came in time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.gateway import latency, streams
from benchmarks.machine import describe

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    flags = _flags()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    machine = describe()
    print(machine.line())
    figures: dict[str, object] = {"machine": machine.as_json(), "routing": flags.routing}
    with (
        _process("replica") as (_, replica),
        _process("process", replica=replica, routing=flags.routing) as (gateway, port),
    ):
        print("clients  direct p50/p99 ms  through p50/p99 ms  added p50/p99 ms")
        found = [asyncio.run(latency.run(replica, port, clients, flags.pairs)) for clients in flags.clients]
        for each in found:
            print(
                f"{each.concurrency:7}  {each.direct_p50:6.2f} / {each.direct_p99:6.2f}    {each.through_p50:6.2f} / "
                f"{each.through_p99:6.2f}     {each.added_p50:6.2f} / {each.added_p99:6.2f}"
            )
        figures["latency"] = [asdict(each) for each in found]
        print(
            f"streams of {1 / flags.every:g} events a second: late by p50/p99 ms, failed, share of a core, its us an event"
        )
        table = []
        for count in flags.streams:
            for way, at, pid in (("direct", replica, None), ("through", port, gateway.pid)):
                one = asyncio.run(streams.run(at, count, flags.events, flags.every, pid))
                table.append({"way": way, **asdict(one)})
                print(
                    f"{one.streams:6} {way:8} {one.lateness_p50_ms:8.2f} / {one.lateness_p99_ms:8.2f} "
                    f"{one.failed:6} {one.cpu_share:6.2f} {one.cpu_us_per_event:6.0f}"
                )
        figures["streams"] = table
    if flags.out is not None:
        flags.out.write_text(json.dumps(figures, indent=1) + "\n")


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--pairs", type=int, default=2000, help="of requests, for each number of clients")
    parser.add_argument("--streams", type=int, nargs="+", default=[50, 100, 200, 400, 800])
    parser.add_argument("--events", type=int, default=100, help="a stream")
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two events")
    parser.add_argument("--routing", choices=("leastLoad", "prefix"), default="leastLoad")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


@contextlib.contextmanager
def _process(module: str, **more: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One of this folder's, listening; and where."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [text for name, value in {"port": port, **more}.items() for text in (f"--{name}", str(value))]
    with subprocess.Popen([sys.executable, "-m", f"benchmarks.gateway.{module}", *flags], cwd=ROOT) as process:
        try:
            asyncio.run(_listening(port))
            yield process, port
        finally:
            process.terminate()


async def _listening(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
