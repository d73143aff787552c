"""GET /debug/blocks of the management port: a snapshot of the engine as JSON, for the page and for curl (docs/page.md).

Answers at any time, also while the model loads and after the engine has ended. Blocks are told in runs, which stay short for a
large pool. The JSON is made beside the event loop and the text threads, so that a busy server can be looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pagemill import __version__
from pagemill import metrics as names
from pagemill_server.api.answers import json_response
from pagemill_server.api.service import Service
from pagemill_server.api.status import Status
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.snapshot import BlockView, SequenceView, Snapshot
from pagemill_server.recent import WINDOW, Recent

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Blocks:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._status = Status(service)

    async def show(self, request: Request) -> Response:
        server, loaded = self._server(), self._service.loaded
        latency = self._service.metrics.recent
        if loaded is None:
            return json_response({"server": server} | nothing_yet(latency), headers=_HEADERS)
        snapshot = await loaded.engine.snapshot()
        body = partial(engine_body, snapshot, loaded.engine.config, latency, time.monotonic())
        return await asyncio.to_thread(lambda: json_response({"server": server} | body(), headers=_HEADERS))

    def _server(self) -> dict[str, Any]:
        service = self._service
        return {
            "model": service.served_names[0],
            "version": __version__,
            "phase": service.lifecycle.phase.value,
            "percent": service.lifecycle.percent,
            "trouble": self._status.trouble(),
            "dead": service.loaded is not None and service.loaded.engine.dead is not None,
            "in_flight": service.in_flight,
            "refusing": service.lifecycle.refusing,
            "max_model_len": None if service.loaded is None else service.loaded.context,
        }


def nothing_yet(latency: Recent) -> dict[str, Any]:
    """While the model loads."""
    return {
        "at": time.monotonic(),
        "age_seconds": 0.0,
        "engine": None,
        "latency": _latency(latency),
        "blocks": None,
        "running": [],
        "waiting": [],
    }


def engine_body(snapshot: Snapshot, config: SchedulerConfig, latency: Recent, now: float) -> dict[str, Any]:
    """`now`: time.monotonic() seconds."""
    return {
        "at": snapshot.taken,
        "age_seconds": max(0.0, now - snapshot.taken),
        "engine": _engine(snapshot, config),
        "latency": _latency(latency),
        "blocks": None if snapshot.blocks is None else _blocks(snapshot.blocks),
        "running": [_sequence(view, snapshot.taken) for view in snapshot.running],
        "waiting": [_sequence(view, snapshot.taken) for view in snapshot.waiting],
    }


def runs(blocks: Iterable[int]) -> str:
    """ "3-5,9,8-6": block numbers in their order, up or down."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(blocks))


def _runs(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    numbers = iter(blocks)
    first = last = next(numbers, None)
    if first is None or last is None:
        return
    direction = 0
    for number in numbers:
        step = number - last
        if step in (1, -1) and direction in (0, step):
            direction = step
        else:
            yield first, last
            first, direction = number, 0
        last = number
    yield first, last


def _engine(snapshot: Snapshot, config: SchedulerConfig) -> dict[str, Any]:
    """Gauges, then what counts up from the start of the process, then the settings that bound them."""
    stats = snapshot.stats
    return {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "waiting_tokens": stats.waiting_tokens,
        "queue_seconds": stats.queue_seconds,
        "step_tokens": stats.step_tokens,
        "kv_cache_usage": stats.kv_cache_usage,
        "prompt_tokens_total": stats.prompt_tokens,
        "generation_tokens_total": stats.generation_tokens,
        "preemptions_total": stats.num_preemptions,
        "prefix_cache_queries_total": stats.prefix_cache_queries,
        "prefix_cache_hits_total": stats.prefix_cache_hits,
        "host_hits_total": stats.host_hits,
        "sequences_total": stats.num_added,
        "policy": config.policy,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }


def _latency(recent: Recent) -> dict[str, Any]:
    """Seconds."""
    first, between = recent.quantiles(names.TIME_TO_FIRST_TOKEN), recent.quantiles(names.INTER_TOKEN_LATENCY)
    return {
        "window_seconds": WINDOW,
        "time_to_first_token": None if first is None else asdict(first),
        "inter_token": None if between is None else asdict(between),
    }


def _blocks(view: BlockView) -> dict[str, Any]:
    return {
        "size": view.block_size,
        "total": view.num_blocks,
        "free": view.num_free,
        "held": view.num_held,
        "cached": len(view.cached),
        "parked": len(view.parked),
        "cached_blocks": runs(sorted(view.cached)),
        "parked_blocks": runs(sorted(view.parked)),
        "host": {"total": view.num_host_blocks, "used": view.num_host_used},
    }


def _sequence(view: SequenceView, taken: float) -> dict[str, Any]:
    began = taken if view.first_scheduled is None else view.first_scheduled
    return {
        "id": view.seq_id,
        "request": view.request_id,
        "index": view.index,
        "state": view.place.value,
        "client": view.client,
        "priority": view.priority,
        "prompt_tokens": view.num_prompt_tokens,
        "cached_tokens": view.num_cached_tokens,
        "computed_tokens": view.num_computed_tokens,
        "output_tokens": view.num_output_tokens,
        "max_tokens": view.max_tokens,
        "preemptions": view.num_preemptions,
        "queued_seconds": max(0.0, began - view.arrival),
        "age_seconds": max(0.0, taken - view.arrival),
        "blocks": runs(view.blocks),
    }
