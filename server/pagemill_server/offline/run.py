"""Runs many requests over an engine until each is over. Called by `LLM` with a collector a request; knows neither text nor model.

A stop string that a collector finds ends that sequence alone, as in the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pagemill_server.engine.ports import StepEngine
from pagemill_server.engine.request import AddRequest, RequestOutput
from pagemill_server.offline.progress import Progress


class GenerationFailed(Exception):
    """The engine could not finish a request; the message says why."""


class Collector(Protocol):
    """One request's results in the making."""

    request: AddRequest

    def take(self, output: RequestOutput) -> bool:
        """One output of the engine. True: its sequence is over, whether the engine has ended it or not."""
        ...

    @property
    def over(self) -> bool:
        """Whether everything has come."""
        ...


def run(engine: StepEngine, collectors: Sequence[Collector], progress: Progress) -> None:
    """Compute all of them together; when it ends, by whatever, the engine has nothing left of them.

    Raises RequestRefused before anything is computed, GenerationFailed.
    """
    by_id = {collector.request.request_id: collector for collector in collectors}
    for collector in collectors:
        engine.check(collector.request)
    try:
        for collector in collectors:
            engine.add(collector.request)
        while engine.has_work:
            for output in engine.step():
                _deliver(engine, by_id, output, progress)
    finally:
        engine.abort_all()


def _deliver(engine: StepEngine, by_id: Mapping[str, Collector], output: RequestOutput, progress: Progress) -> None:
    if output.error is not None:
        raise GenerationFailed(output.error)
    collector = by_id.get(output.request_id)
    if collector is None or collector.over:
        return
    ended = collector.take(output)
    if ended and output.finish_reason is None:
        engine.abort(output.request_id, output.index)
    tokens = output.num_prompt_tokens if output.embedding is not None else len(output.tokens)
    progress.advance(int(collector.over), tokens)
