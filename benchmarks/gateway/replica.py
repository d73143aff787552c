"""A replica that costs next to nothing, as a process: what is measured is the gateway, not an engine.

POST /v1/completions answers at once; with `"stream": true` in the body it sends `events` server-sent events of a chat chunk's size,
one each `every` seconds, each with the clock at which it was written. Raw asyncio, for a framework would cost as much as the
gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

WHOLE = json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": "x" * 300}]}).encode()
PADDING = "x" * 180  # with the rest about the size of a chat chunk


class Replica(asyncio.Protocol):
    """One connection, one request after another."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._came = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, body = self._came.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if not end or len(body) < length:
            return
        self._came = b""
        asked = json.loads(body)
        if asked.get("stream"):
            self._streaming = asyncio.create_task(self._stream(asked["events"], asked["every"]))
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(WHOLE)
            self._transport.write(head + WHOLE)

    async def _stream(self, events: int, every: float) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        due = time.monotonic()
        for _ in range(events):
            event = b'data: {"t": %d, "text": "%s"}\n\n' % (time.monotonic_ns(), PADDING.encode())
            self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
            due += every
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
        self._transport.write(b"0\r\n\r\n")


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Replica, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(main(parser.parse_args().port))
