"""`block_copies` on a GPU: a stream of its own beside the one that computes, ordered by events; host memory is pinned.

Blocks pass through a staging tensor of some blocks, in which each is one run of bytes, as it is in host memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch

from pagemill_server.engine.errors import CopyFailed
from pagemill_server.engine.schedule import BlockCopy, Fetch
from pagemill_server.model.block_copies import Ended
from pagemill_server.model.host_pool import HostPool
from pagemill_server.model.kv_pool import KVPool

STAGING_BYTES = 64 << 20  # at most, but one block at least
POLL_SECONDS = 0.0002


class StreamCopier:
    """See `block_copies.BlockCopier`."""

    def __init__(self, device_pool: KVPool, host_pool: HostPool) -> None:
        self._device, self._host = device_pool.data, host_pool.data
        self._stream = torch.cuda.Stream(self._device.device)  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[int, torch.cuda.Event, torch.cuda.Event]] = deque()  # begin, end; in order
        block_bytes = self._host[0].numel() * self._host.element_size()
        self._batch = max(1, STAGING_BYTES // block_bytes)
        self._failure: Exception | None = None

    def begin(self, offloads: Iterable[BlockCopy], fetches: Iterable[Fetch]) -> None:
        computing = torch.cuda.current_stream(self._device.device)
        try:
            if self._failure is not None:
                raise self._failure
            self._stream.wait_stream(computing)  # the blocks that leave were written there, or are still read
            with torch.cuda.stream(self._stream):
                for some in _batches(offloads, self._batch):
                    self._out(some)
                computing.wait_event(self._stream.record_event())
                for fetch in fetches:
                    began = self._timed_event()
                    for some in _batches(fetch.copies, self._batch):
                        self._in(some)
                    self._under_way.append((fetch.ticket, began, self._timed_event()))
        except Exception as error:
            self._failure = error  # a CUDA error stays: no later copy can be trusted
            raise CopyFailed(error) from error

    def ended(self, wait: float = 0.0) -> Ended:
        until = time.monotonic() + wait
        while self._under_way and not self._oldest_is_done() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)  # an event has no timed wait
        tickets: set[int] = set()
        seconds = 0.0
        while self._under_way and self._oldest_is_done():
            ticket, begin, end = self._under_way.popleft()
            tickets.add(ticket)
            seconds += begin.elapsed_time(end) / 1000
        return Ended(frozenset(tickets), seconds)

    def close(self) -> None:
        self._stream.synchronize()
        self._under_way.clear()

    def _timed_event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _oldest_is_done(self) -> bool:
        return bool(self._under_way[0][2].query())  # type: ignore[no-untyped-call]

    def _out(self, copies: Sequence[BlockCopy]) -> None:
        staged = self._device.index_select(3, self._indices(copy.source for copy in copies)).movedim(3, 0).contiguous()
        for block, copy in zip(staged, copies, strict=True):
            self._host[copy.target].copy_(block, non_blocking=True)

    def _in(self, copies: Sequence[BlockCopy]) -> None:
        staged = torch.empty((len(copies), *self._host.shape[1:]), dtype=self._host.dtype, device=self._device.device)
        for block, copy in zip(staged, copies, strict=True):
            block.copy_(self._host[copy.source], non_blocking=True)
        self._device.index_copy_(3, self._indices(copy.target for copy in copies), staged.movedim(0, 3))

    def _indices(self, blocks: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(blocks), device=self._device.device)


def _batches(copies: Iterable[BlockCopy], size: int) -> Iterator[list[BlockCopy]]:
    rest = iter(copies)
    while some := list(islice(rest, size)):
        yield some
