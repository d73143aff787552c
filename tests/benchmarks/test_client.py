"""The client against a real HTTP server that answers as OpenAI's API does, and as broken servers do."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from benchmarks.client import Target, carries_output, replay, take_usage
from benchmarks.measure import Sample
from benchmarks.workloads import Prompt, Workload

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await answer(request, await request.json())

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def usage(body: dict[str, Any]) -> dict[str, Any]:
    details = {"cached_tokens": 2}
    return {"prompt_tokens": 7, "completion_tokens": body["max_tokens"], "prompt_tokens_details": details}


async def well(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if not body["stream"]:
        return web.json_response({"choices": [{"text": "words"}], "usage": usage(body)})
    return await stream(
        request,
        *({"choices": [{"text": "w", "finish_reason": None}]} for _ in range(body["max_tokens"])),
        {"choices": [{"text": "", "finish_reason": "length"}]},
        {"choices": [], "usage": usage(body)},
        "[DONE]",
    )


async def stream(request: web.Request, *events: dict[str, Any] | str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": a comment\n\n")
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {text}\n\n".encode())
    return response


def workload(streaming: bool, kind: Any = "closed", concurrency: int = 2) -> Workload:
    prompts = tuple(Prompt((1, 2, index), f"text {index}", 3, arrival=index / 100) for index in range(6))
    return Workload("w", kind, streaming, concurrency, (), (prompts,))


async def run(answer: Answer, job: Workload, **target: Any) -> list[Sample]:
    async with answering(answer) as url:
        return await replay(Target(url, "m", **target), job, job.variants[0])


@pytest.mark.parametrize("kind", ["closed", "open"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_every_request_is_sent_and_counted(kind: str, streaming: bool) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        asked.append(body)
        return await well(request, body)

    samples = await run(answer, workload(streaming, kind))
    assert [sample.error for sample in samples] == [None] * 6
    assert all((s.prompt_tokens, s.output_tokens, s.cached_tokens) == (7, 3, 2) for s in samples)
    assert all(len(s.chunks) == (3 if streaming else 0) for s in samples)
    assert all(s.start <= (s.chunks or [s.end])[0] <= s.end for s in samples)
    assert sorted(body["prompt"] for body in asked) == [f"text {index}" for index in range(6)]
    common = {"model": "m", "max_tokens": 3, "temperature": 0.0, "stream": streaming, "ignore_eos": True}
    common |= {"stream_options": {"include_usage": True}} if streaming else {}
    assert all({key: body[key] for key in body if key != "prompt"} == common for body in asked)


@pytest.mark.parametrize("concurrency", [1, 3, 6])
async def test_closed_workloads_keep_so_many_in_flight_and_no_more(concurrency: int) -> None:
    running = most = 0
    full = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == concurrency:
            full.set()
        await full.wait()  # so many must come together, or the test hangs
        await asyncio.sleep(0.01)
        running -= 1
        return await well(request, body)

    async with asyncio.timeout(30):
        await run(answer, workload(False, concurrency=concurrency))
    assert most == concurrency


async def test_open_workloads_wait_for_nobody() -> None:
    waiting = 0
    everybody = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal waiting
        waiting += 1
        if waiting == 6:
            everybody.set()
        await everybody.wait()  # answered only when all six are here
        return await well(request, body)

    async with asyncio.timeout(30):
        samples = await run(answer, workload(False, "open"))
    assert all(sample.start >= index / 100 for index, sample in enumerate(samples))


async def test_token_ids_the_key_and_the_end_token_as_asked() -> None:
    seen: list[tuple[str | None, dict[str, Any]]] = []

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        seen.append((request.headers.get("Authorization"), body))
        return await well(request, body)

    await run(answer, workload(False), prompt="ids", ignore_eos=False, api_key="key")
    assert sorted(body["prompt"] for _, body in seen) == [[1, 2, index] for index in range(6)]
    assert all(key == "Bearer key" and "ignore_eos" not in body for key, body in seen)


async def refuses(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "the queue is full"}}, status=503)


async def redirects(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    raise web.HTTPTemporaryRedirect("http://192.0.2.1/v1/completions")


async def breaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await stream(request, {"choices": [{"text": "w", "finish_reason": None}]})
    assert request.transport is not None
    request.transport.close()
    return response


async def ends_early(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, {"choices": [{"text": "w", "finish_reason": None}], "usage": usage(body)})


async def reports_an_error(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, {"error": {"message": "the engine stopped"}}, "[DONE]")


async def says_nothing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, "[DONE]")


async def is_no_json(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, "{")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refuses, "HTTP 503.*the queue is full"),
        (redirects, "HTTP 307"),
        (breaks, "Payload|closed|Disconnected"),
        (ends_early, r"without \[DONE\]"),
        (reports_an_error, "the engine stopped"),
        (says_nothing, "no output tokens"),
        (is_no_json, "JSONDecodeError"),
    ],
)
async def test_a_request_that_fails_is_a_failed_sample(answer: Answer, says: str) -> None:
    samples = await run(answer, workload(True))
    assert len(samples) == 6
    for sample in samples:
        assert sample.error is not None
        assert re.search(says, sample.error), sample.error


async def test_nobody_there() -> None:
    samples = await replay(Target("http://127.0.0.1:9", "m"), workload(True), workload(True).variants[0])
    assert all(sample.error and "Connect" in sample.error for sample in samples)


@pytest.mark.parametrize(
    ("event", "carries"),
    [
        ({"choices": [{"text": "a", "finish_reason": None}]}, True),
        ({"choices": [{"text": "", "finish_reason": None}]}, True),  # half a character: its token has come
        ({"choices": [{"text": "a", "finish_reason": "stop"}]}, True),
        ({"choices": [{"text": "", "finish_reason": "stop"}]}, False),
        ({"choices": [], "usage": {}}, False),
        ({}, False),
    ],
)
def test_which_chunks_carry_output(event: dict[str, Any], carries: bool) -> None:
    assert carries_output(event) is carries


def test_usage_may_be_missing_or_null() -> None:
    sample = Sample(0.0, 3)
    nothing: tuple[dict[str, Any], ...] = ({}, {"usage": None}, {"usage": {}})
    for event in nothing:
        take_usage(sample, event)
    assert sample.output_tokens == 0
    take_usage(sample, {"usage": {"completion_tokens": 3, "prompt_tokens_details": None}})
    assert (sample.output_tokens, sample.cached_tokens) == (3, 0)
