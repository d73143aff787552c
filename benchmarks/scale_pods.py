"""Stands in for the servers of a thousand pods: one process that answers for every address that is led to it.

`python -m benchmarks.scale_pods ready|silent`. `ready` says on /ready what a server that serves says, with the hot settings that
were sent to that address; `silent` takes the connection and never answers, as a hung one does. Started by `operator_scale`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pagemill.endpoints import MANAGEMENT_PORT, READY_PATH, SERVING_PORT

CAPACITY = {
    "weightsBytes": 13_476_839_424,
    "kvCacheBytes": 8_589_934_592,
    "kvBlocks": 1024,
    "maxConcurrentTokens": 16_384,
    "maxModelLenThatFits": 16_384,
}
READY: dict[str, Any] = {"ready": True, "phase": "Serving", "percent": 100, "bytesLoaded": 1, "bytesTotal": 1}


async def main(manner: str, *ports: str) -> None:
    """Until it is killed. `ports`: others than a pod's own."""
    answer = _answer if manner == "ready" else _keep_silent
    for port in ports or (SERVING_PORT, MANAGEMENT_PORT):
        server = await asyncio.start_server(answer, "0.0.0.0", int(port), backlog=1024)
        print("listening", server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def _keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side gives up
    writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while request := await reader.readline():
            path = request.split()[1].decode()
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps({**READY, "capacity": CAPACITY} if path == READY_PATH else {}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the asker hung up
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
