"""Many open streams against a Service, for as long as a test does things to what is behind it: not one may be cut short.

Each stream is a connection of its own through the ClusterIP, or straight to a pod, as many clients are; one that has ended is
followed by a new one, unless `once` is said. A 503 with Retry-After is asked again, as OpenAI's clients do, and counted. Called by
test_streams, test_lossless and test_hot.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp

TAIL = 4096  # bytes of a stream's end that are kept: its last events
PATIENCE = 600.0  # seconds that one stream may take
LONGEST_WAIT = 3.0  # of a Retry-After: a test has no time for five seconds of it
RETRIES = 2  # in a row, as OpenAI's clients have it


@dataclass
class Tally:
    """What became of the streams. `cut` and `failed` hold the words of those that did not end as they should."""

    open: int = 0
    finished: int = 0
    asked_again: int = 0  # after a 503 with Retry-After
    most_in_a_row: int = 0  # of those, for one request
    cut: list[str] = field(default_factory=list)  # that had begun
    failed: list[str] = field(default_factory=list)  # that never did


class Streams:
    """Use with `with`: leaving it lets every stream finish. `tally` is written by its thread and read by the test's."""

    def __init__(self, address: str, model: str, *, count: int, tokens: int, once: bool = False) -> None:
        self.tally = Tally()
        self._url = f"{address}/v1/completions"
        self._body = {"model": model, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
        self._count = count
        self._once = once
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="streams")

    def __enter__(self) -> Streams:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(PATIENCE + 30)
        assert not self._thread.is_alive(), f"streams that never end: {self.tally}"

    def until(self, what: str, is_so: Callable[[Tally], bool], seconds: float = PATIENCE) -> None:
        """Wait until the tally says so."""
        deadline = time.monotonic() + seconds
        while not is_so(self.tally):
            assert time.monotonic() < deadline, f"never {what}: {self.tally}"
            time.sleep(0.05)

    def all_open(self, count: int | None = None) -> None:
        """Wait until as many as there can be, or `count`, are under way at once, whoever has been asked again."""
        wanted = self._count if count is None else count
        self.until(f"{wanted} open", lambda tally: tally.open >= wanted)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._one_after_another(session, number))

    async def _one_after_another(self, session: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(number / self._count)  # a second's worth of arrivals, not one burst
        while not self._over.is_set():
            failed = len(self.tally.failed)
            await self._one(session, number)
            if self._once:
                return
            if len(self.tally.failed) > failed:
                await asyncio.sleep(1)

    async def _one(self, session: aiohttp.ClientSession, number: int) -> None:
        body = {**self._body, "prompt": f"stream {number}"}
        for attempt in range(100):
            try:
                async with session.post(self._url, json=body) as response:
                    if response.status == 200:
                        await self._read(response)
                        return
                    again = response.headers.get("Retry-After")
                    if response.status != 503 or again is None:
                        self.tally.failed.append(f"{response.status}: {(await response.text())[:200]}")
                        return
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.tally.failed.append(f"{type(error).__name__}: {error}")
                return
            self.tally.asked_again += 1
            self.tally.most_in_a_row = max(self.tally.most_in_a_row, attempt + 1)
            await asyncio.sleep(min(LONGEST_WAIT, float(again)))

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        tail = b""
        self.tally.open += 1
        try:
            async for piece in response.content.iter_any():
                tail = (tail + piece)[-TAIL:]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.tally.cut.append(f"{type(error).__name__}: {error} after {tail[-300:]!r}")
        else:
            if b'"finish_reason":"length"' in tail.replace(b" ", b"") and tail.rstrip().endswith(b"data: [DONE]"):
                self.tally.finished += 1
            else:
                self.tally.cut.append(repr(tail[-300:]))
        finally:
            self.tally.open -= 1
