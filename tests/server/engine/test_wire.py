"""Messages between two processes: what comes out is what went in."""

from __future__ import annotations

import pytest

from pagemill_server.config import SchedulerConfig
from pagemill_server.engine.front import Stop, TakeSnapshot
from pagemill_server.engine.request import (
    AbortRequest,
    AddRequest,
    FinishReason,
    RequestOutput,
    SampledToken,
    SamplingParams,
    SetScheduler,
    TokenLogprob,
)
from pagemill_server.engine.wire import Ended, Entered, KeptConfig, Progress, Published, pack, unpack
from tests.server.engine.scripted import make_engine

TOKEN = SampledToken(7, -0.5, (TokenLogprob(7, -0.5), TokenLogprob(9, -1.5)), 1)
OUTPUT = RequestOutput("a", (TOKEN,), FinishReason.LENGTH, None, 3, 1, 12.5, 2, (TOKEN,), (0.1, 0.2))
REQUEST = AddRequest("a", (1, 2, 3), SamplingParams(stop=("x",), seed=4), 1.5, "salt", "me", 2, 9.5, True)


def messages() -> list[object]:
    engine, _ = make_engine()
    snapshot, stats = engine.snapshot(), engine.stats()
    return [
        OUTPUT,
        REQUEST,
        AbortRequest("a", 3),
        AbortRequest("a"),
        SetScheduler(SchedulerConfig(max_num_seqs=3)),
        TakeSnapshot(),
        Stop(),
        snapshot,
        Published(stats, (OUTPUT, OUTPUT._replace(finish_reason=None)), 4, (1, 2)),
        KeptConfig(SchedulerConfig()),
        Ended("why", snapshot),
        Ended(None, None),
        Entered("Warmup"),
        Progress(1, 2),
    ]


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
def test_what_comes_out_is_what_went_in(message: object) -> None:
    back = unpack(pack(message))
    assert back == message
    assert type(back) is type(message)
