"""How much may wait: refuses what comes before any work is done for it. Used by `loop`, on the event loop's thread.

What was submitted and isn't in the engine's published stats yet counts as waiting, so that a burst between two steps doesn't slip
through. What finds a free place, or an engine that has nothing to do, doesn't wait and is not refused.
"""

from __future__ import annotations

from collections import deque

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.errors import QueueFull
from pagemill_server.engine.estimate import retry_after
from pagemill_server.engine.request import AddRequest, EngineStats


class QueueBounds:
    def __init__(self) -> None:
        self._submitted = 0  # sequences, total
        self._on_their_way: deque[tuple[int, int, int]] = deque()  # sequences submitted up to here; sequences, tokens

    def submitted(self, request: AddRequest, stats: EngineStats) -> None:
        """To be called after the request went on its way; `stats` are the newest."""
        self._forget(stats)
        sequences = request.sampling.n
        self._submitted += sequences
        self._on_their_way.append((self._submitted, sequences, len(request.prompt_token_ids)))

    def check(self, config: SchedulerConfig, stats: EngineStats, num_sequences: int, num_tokens: int) -> None:
        """Raises QueueFull."""
        if config.max_num_queued_reqs is None and config.max_num_queued_tokens is None:
            return
        self._forget(stats)
        sequences = stats.num_waiting + sum(entry[1] for entry in self._on_their_way)
        tokens = stats.waiting_tokens + sum(entry[2] for entry in self._on_their_way)
        if not sequences and not stats.num_running:
            return  # or a request larger than the bound could never be served
        free = max(0, config.max_num_seqs - stats.num_running) if not stats.num_waiting else 0
        if sequences + num_sequences <= free:
            return
        _refuse_beyond(config.max_num_queued_reqs, sequences - free, num_sequences, "max_num_queued_reqs", stats)
        if sequences:  # an empty queue takes one request of any length
            _refuse_beyond(config.max_num_queued_tokens, tokens, num_tokens, "max_num_queued_tokens", stats)

    def _forget(self, stats: EngineStats) -> None:
        """What the engine has taken in is in its stats."""
        while self._on_their_way and self._on_their_way[0][0] <= stats.num_added:
            self._on_their_way.popleft()


def _refuse_beyond(bound: int | None, waiting: int, more: int, name: str, stats: EngineStats) -> None:
    if bound is None or waiting + more <= bound:
        return
    seconds = retry_after(stats.queue_seconds)
    what = "sequences" if name == "max_num_queued_reqs" else "prompt tokens"
    raise QueueFull(
        f"The server is overloaded: {max(0, waiting)} {what} wait, {more} more would be beyond {name}={bound}. "
        f"Try again in {seconds} seconds.",
        name,
        seconds,
    )
