"""Replays one variant of a workload against an OpenAI-compatible server over HTTP and times every request.

Closed workloads: `concurrency` clients, each with one request at a time. Open ones: every request at its own time, whether or not
the others have come back. Called by `serve`; the arithmetic is `measure`'s.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from benchmarks.measure import Sample
from benchmarks.workloads import Prompt, Workload

_BUFFER = 1 << 20  # bytes; a line of a stream may be long


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to ask it."""

    base_url: str  # without /v1
    model: str
    prompt: Literal["text", "ids"] = "text"
    ignore_eos: bool = True  # every reply has the length it asks for
    api_key: str | None = None
    timeout: float = 600.0  # seconds a request


async def replay(target: Target, workload: Workload, prompts: Sequence[Prompt]) -> list[Sample]:
    """Send the prompts as the workload says, and return what each did; never raises for a request that fails."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    # A connection each, as separate clients have: some servers drop a kept one after a reply, and a POST is not sent twice.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=target.timeout)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, read_bufsize=_BUFFER
    ) as session:
        client = _Client(session, target, workload.stream)
        if workload.kind == "open":
            return list(await asyncio.gather(*(client.send_at(prompt) for prompt in prompts)))
        return await client.send_closed(prompts, workload.concurrency)


class _Client:
    """One replay: a session and its clock."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, stream: bool) -> None:
        self._session, self._target, self._stream = session, target, stream
        self._began = time.perf_counter()

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def send_closed(self, prompts: Sequence[Prompt], concurrency: int) -> list[Sample]:
        waiting = iter(prompts)  # shared: each prompt goes to one client
        samples: list[Sample] = []

        async def one_client() -> None:
            for prompt in waiting:
                samples.append(await self._send(prompt))

        await asyncio.gather(*(one_client() for _ in range(concurrency)))
        return samples

    async def send_at(self, prompt: Prompt) -> Sample:
        await asyncio.sleep(max(0.0, prompt.arrival - self._now()))
        return await self._send(prompt)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._target.model,
            "prompt": list(prompt.ids) if self._target.prompt == "ids" else prompt.text,
            "max_tokens": prompt.max_tokens,
            "temperature": 0.0,
            "stream": self._stream,
        }
        if self._target.ignore_eos:
            body["ignore_eos"] = True
        if self._stream:
            body["stream_options"] = {"include_usage": True}
        return body

    async def _send(self, prompt: Prompt) -> Sample:
        body = self._body(prompt)
        sample = Sample(self._now(), prompt.max_tokens)
        try:
            url = f"{self._target.base_url}/v1/completions"
            async with self._session.post(url, json=body, allow_redirects=False) as response:
                if response.status != 200:
                    sample.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                elif self._stream:
                    await self._read_stream(response, sample)
                else:
                    take_usage(sample, await response.json())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            sample.error = f"{type(error).__name__}: {error}"
        sample.end = self._now()
        if sample.error is None and not sample.output_tokens:
            sample.error = "the reply holds no output tokens"
        return sample

    async def _read_stream(self, response: aiohttp.ClientResponse, sample: Sample) -> None:
        ended = False
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                ended = True
                break
            at = self._now()
            event = json.loads(data)
            if "error" in event:
                sample.error = str(event["error"])[:300]
                return
            take_usage(sample, event)
            if carries_output(event):
                sample.chunks.append(at)
        if not ended:
            sample.error = "the stream ended without [DONE]"


def take_usage(sample: Sample, event: dict[str, Any]) -> None:
    """Token counts, from whichever event brings them."""
    usage = event.get("usage") or {}
    if not usage:
        return
    sample.prompt_tokens = int(usage.get("prompt_tokens") or 0)
    sample.output_tokens = int(usage.get("completion_tokens") or 0)
    sample.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def carries_output(event: dict[str, Any]) -> bool:
    """Whether tokens came: text, or none yet because a character is not whole; not a chunk that only says why it ended."""
    choices = event.get("choices") or []
    return bool(choices) and (bool(choices[0].get("text")) or choices[0].get("finish_reason") is None)
