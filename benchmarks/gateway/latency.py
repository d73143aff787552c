"""One request after another on kept connections, direct and through the gateway in turn, so that both meet the same machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

BODY = json.dumps({"model": "x", "messages": [{"role": "user", "content": "Hello " * 200}], "max_tokens": 1}).encode()


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of a request, by both ways; `added` is of pairs, each a request direct and the next through the gateway."""

    concurrency: int
    pairs: int
    direct_p50: float
    direct_p99: float
    through_p50: float
    through_p99: float
    added_p50: float
    added_p99: float


async def run(direct: int, through: int, concurrency: int, pairs: int) -> Latency:
    """Ports, clients at once, and pairs of all of them together."""
    found: list[tuple[int, int]] = []

    async def client() -> None:
        ways = [await asyncio.open_connection("127.0.0.1", port) for port in (direct, through)]
        for number in range(-5, pairs // concurrency):  # the first ones warm up
            order = (0, 1) if number % 2 else (1, 0)
            taken = {way: await _ask(*ways[way], (direct, through)[way]) for way in order}
            if number >= 0:
                found.append((taken[0], taken[1]))
        for _, writer in ways:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    columns = [sorted(column) for column in (*zip(*found, strict=True), [after - before for before, after in found])]
    figures = [percentile(column, share) / 1e6 for column in columns for share in (0.5, 0.99)]
    return Latency(concurrency, len(found), *figures)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> int:
    """Nanoseconds."""
    began = time.perf_counter_ns()
    writer.write(request(port, BODY))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(length)
    return time.perf_counter_ns() - began


def request(port: int, body: bytes) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def percentile(ordered: Sequence[int], share: float) -> float:
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])
