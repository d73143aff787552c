"""Many streams at once on raw connections: how late each event came, and what the gateway's process took meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateway.latency import percentile, request

_STAMP = re.compile(rb'"t": (\d+)')
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Streams:
    """What so many at once came to."""

    streams: int
    failed: int  # did not get all of their events
    lateness_p50_ms: float  # from the replica's write to the client's read
    lateness_p99_ms: float
    cpu_share: float  # of one core, the gateway's process; 0 without one
    cpu_us_per_event: float  # which a busy machine changes least


@dataclass(slots=True)
class _Seen:
    late_ns: list[int] = field(default_factory=list)
    failed: int = 0


async def run(port: int, streams: int, events: int, every: float, pid: int | None) -> Streams:
    """`pid`: the gateway's. Streams begin spread over a second, so that they are not in step."""
    seen = _Seen()
    body = json.dumps(
        {
            "model": "x",
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": True,
            "events": events,
            "every": every,
        }
    )
    began, busy = time.monotonic(), _cpu_seconds(pid)
    async with asyncio.TaskGroup() as group:
        for number in range(streams):
            group.create_task(_one(port, number / streams, body.encode(), events, seen))
    took, wall = _cpu_seconds(pid) - busy, time.monotonic() - began
    late = sorted(seen.late_ns) or [0]
    p50, p99 = (percentile(late, share) / 1e6 for share in (0.5, 0.99))
    return Streams(streams, seen.failed, p50, p99, took / wall, 1e6 * took / len(late))


async def _one(port: int, after: float, body: bytes, events: int, seen: _Seen) -> None:
    await asyncio.sleep(after)
    got = 0
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(port, body))
        rest = b""
        while got < events and (part := await reader.read(1 << 16)):
            now = time.monotonic_ns()
            *lines, rest = (rest + part).split(b"\n\n")
            for line in lines:
                if (stamp := _STAMP.search(line)) is not None:
                    seen.late_ns.append(now - int(stamp[1]))
                    got += 1
        writer.close()
    except OSError:
        pass
    seen.failed += got < events


def _cpu_seconds(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
