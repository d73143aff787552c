"""A peer without a server of its own: a program that takes one JSON document a line and answers each with one.

It writes {"event": "ready"} and {"event": "first"} (it has made a token, or a vector) while it starts. What it is asked:
{"prompts": [{"ids", "max_tokens", "arrival"} …], "kind", "concurrency"} → {"samples": [{…measure.Sample…} …]}, and
{"texts": […]} → {"seconds"}. One document at a time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample
from benchmarks.peers import process
from benchmarks.peers.contestant import Contestant, PeerError
from benchmarks.workloads import Prompt, Workload


@contextmanager
def talking(name: str, command: Sequence[str], *, embeds: bool = False) -> Iterator[Contestant]:
    """The program while the block runs."""
    began = time.perf_counter()
    with process.started(name, command, {"OMP_WAIT_POLICY": "PASSIVE"}, pipes=True) as (running, log):
        program = _Program(name, running, log)
        program.expect("ready")
        ready = time.perf_counter() - began
        program.expect("first")
        first = time.perf_counter() - began
        if embeds:
            yield Contestant(name, running.pid, ready, first, embed=program.embed)
        else:
            yield Contestant(name, running.pid, ready, first, replay=program.replay)


class _Program:
    def __init__(self, name: str, running: subprocess.Popen[bytes], log: Path) -> None:
        assert running.stdin is not None
        assert running.stdout is not None
        self._name, self._log = name, log
        self._process, self._in, self._out = running, running.stdin, running.stdout

    def expect(self, event: str) -> None:
        if (said := self._answer().get("event")) != event:
            raise PeerError(f"{self._name} said {said!r} where {event!r} was due (log {self._log})")

    async def replay(self, workload: Workload, prompts: Sequence[Prompt]) -> list[Sample]:
        asked = [{"ids": list(p.ids), "max_tokens": p.max_tokens, "arrival": p.arrival} for p in prompts]
        document = {"prompts": asked, "kind": workload.kind, "concurrency": workload.concurrency}
        answer = await asyncio.to_thread(self._ask, document)
        samples = [Sample(**sample) for sample in answer["samples"]]
        if not workload.stream:
            for sample in samples:
                sample.chunks.clear()
        return samples

    async def embed(self, texts: Sequence[str], batch: int, at_a_time: int) -> float:
        """It chooses its batches itself: `batch` and `at_a_time` are a client's."""
        answer = await asyncio.to_thread(self._ask, {"texts": list(texts)})
        return float(answer["seconds"])

    def _ask(self, document: dict[str, Any]) -> dict[str, Any]:
        try:
            self._in.write(json.dumps(document).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            pass  # it is gone, and reading says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next line that is a document; libraries print what they like."""
        for line in iter(self._out.readline, b""):
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self._process.wait()
        code = self._process.returncode
        raise PeerError(f"{self._name} ended with exit code {code} (log {self._log}):\n{process.tail(self._log)}")
