"""Copies of blocks between the device's pool and the host's: out before a step, in beside the steps.

`runner` calls `begin` before it computes and `ended` after. Which block goes where is decided in `engine/kv_cache`, which also sees
to it that nothing else reads or writes a block that a fetch under way copies from or into. On CPU a thread of its own fetches
(`ThreadCopier`); on a GPU a stream (`stream_copies`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagemill_server.engine.errors import CopyFailed
from pagemill_server.engine.schedule import BlockCopy, Fetch
from pagemill_server.model.host_pool import HostPool
from pagemill_server.model.kv_pool import KVPool

log = logging.getLogger(__name__)

_Bytes = npt.NDArray[np.uint8]
_Result = tuple[int, float] | Exception  # ticket and seconds


@dataclass(frozen=True, slots=True)
class Ended:
    """Fetches that are done."""

    tickets: frozenset[int] = frozenset()
    seconds: float = 0.0  # that copying their blocks took, all of them together


class BlockCopier(Protocol):
    """One an engine, called by its thread only."""

    def begin(self, offloads: Iterable[BlockCopy], fetches: Iterable[Fetch]) -> None:
        """What the device pool is written from now on comes after `offloads`; `fetches` begin after them and run beside it.

        Raises CopyFailed if a copy failed, now or earlier; `fetches` begin all the same.
        """
        ...

    def ended(self, wait: float = 0.0) -> Ended:
        """The fetches that ended since the last call. If none has but some are under way, one is waited for, at most `wait`
        seconds. What a step reads and writes from now on comes after them."""
        ...

    def close(self) -> None:
        """Let what is under way end, and stop. A second call does nothing."""
        ...


class ThreadCopier:
    """For two pools in the same memory. Offloads are made at once: their blocks are written by the very next step."""

    def __init__(self, device_pool: KVPool, host_pool: HostPool) -> None:
        self._device, self._host = _device_bytes(device_pool), _host_bytes(host_pool)
        self._jobs: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._under_way = 0
        self._failure: Exception | None = None
        # The thread knows the arrays and the queues but not this object, so it ends with it; daemon, for what is left at the end.
        self._thread = threading.Thread(
            target=_fetch_all,
            args=(self._device, self._host, self._jobs, self._results),
            name="block-copies",
            daemon=True,
        )
        self._thread.start()
        self._end = weakref.finalize(self, self._jobs.put, None)

    def begin(self, offloads: Iterable[BlockCopy], fetches: Iterable[Fetch]) -> None:
        try:
            for copy in offloads:
                np.copyto(self._host[copy.target], self._device[:, copy.source])
        except Exception as error:
            log.exception("a block could not be copied to the host tier")
            self._failure = error
        for fetch in fetches:
            self._under_way += 1
            self._jobs.put(fetch)
        if self._failure is not None:
            raise CopyFailed(self._failure) from self._failure

    def ended(self, wait: float = 0.0) -> Ended:
        tickets: set[int] = set()
        seconds = 0.0
        while self._under_way:
            try:
                result = self._results.get(timeout=wait) if wait and not tickets else self._results.get_nowait()
            except queue.Empty:
                break
            self._under_way -= 1
            if isinstance(result, Exception):
                self._failure = result
                break
            tickets.add(result[0])
            seconds += result[1]
        return Ended(frozenset(tickets), seconds)

    def close(self) -> None:
        self._end()
        self._thread.join()


def make_copier(device_pool: KVPool, host_pool: HostPool) -> BlockCopier:
    """The one that suits where the device pool lies."""
    if device_pool.data.device.type == "cuda":
        # Here and not above: it is only of use where there is a GPU.
        from pagemill_server.model.stream_copies import StreamCopier

        return StreamCopier(device_pool, host_pool)
    return ThreadCopier(device_pool, host_pool)


def _fetch_all(
    device: _Bytes,
    host: _Bytes,
    jobs: queue.SimpleQueue[Fetch | None],
    results: queue.SimpleQueue[_Result],
) -> None:
    while (fetch := jobs.get()) is not None:
        began = time.perf_counter()
        try:
            for copy in fetch.copies:
                np.copyto(device[:, copy.target], host[copy.source])
        except Exception as error:
            log.exception("a block could not be fetched from the host tier")
            results.put(error)  # the next step raises it, on the engine's thread
        else:
            results.put((fetch.ticket, time.perf_counter() - began))


# numpy for the copies themselves: it lets go of the GIL and starts no threads of its own beside the step's, as torch would.


def _device_bytes(pool: KVPool) -> _Bytes:
    """[layers * 2 * heads, blocks, bytes], of either layout a view."""
    rows = pool.data.shape[:3].numel()
    return _bytes(pool.data, rows, pool.data.shape[3])


def _host_bytes(pool: HostPool) -> _Bytes:
    """[blocks, layers * 2 * heads, bytes]"""
    return _bytes(pool.data, pool.num_blocks, pool.data.shape[1:4].numel())


def _bytes(data: torch.Tensor, *shape: int) -> _Bytes:
    array: npt.NDArray[Any] = data.view(torch.uint8).numpy()
    view = array.reshape(*shape, -1)
    assert np.shares_memory(array, view), "a copy would be filled and not the pool"
    return view
