"""What a snapshot says of blocks and sequences, and that looking at an engine neither stops nor changes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import fields, replace

import pytest

from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine import front
from pagemill_server.engine.encoder import EncoderEngine
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.errors import RunnerLost
from pagemill_server.engine.loop import EngineLoop
from pagemill_server.engine.snapshot import LISTED, Place, SequenceView, Snapshot
from pagemill_server.engine.tier_costs import FixedCosts
from tests.server.engine.scripted import SlotRunner, make_engine, make_request, run_to_end, token_ids
from tests.server.engine.test_loop import Gate, engine_loop, read, soon, until


def checked(engine: Engine) -> Snapshot:
    """A snapshot whose blocks add up: each is held, cached, parked or free."""
    snapshot = engine.snapshot()
    blocks = snapshot.blocks
    assert blocks is not None
    held = {block for view in snapshot.running for block in view.blocks}
    assert len(held) == blocks.num_held
    named = [*held, *blocks.cached, *blocks.parked]
    assert len(named) == len(set(named)) == blocks.num_blocks - blocks.num_free
    return snapshot


def only(views: tuple[SequenceView, ...]) -> SequenceView:
    (view,) = views
    return view


def test_an_engine_that_has_done_nothing() -> None:
    engine, _ = make_engine(num_blocks=8, block_size=4)
    snapshot = checked(engine)
    assert snapshot.blocks is not None
    assert (snapshot.blocks.num_blocks, snapshot.blocks.block_size, snapshot.blocks.num_free) == (8, 4, 8)
    assert (snapshot.running, snapshot.waiting) == ((), ())
    assert snapshot.stats == engine.stats()


def test_a_sequence_from_waiting_to_gone() -> None:
    engine, _ = make_engine(num_blocks=8, block_size=4, max_num_batched_tokens=6)
    engine.add(make_request(10, max_tokens=3, request_id="r", client="key1", priority=2, arrival=7.0))
    waiting = only(checked(engine).waiting)
    assert (waiting.place, waiting.request_id, waiting.client, waiting.priority) == (Place.WAITING, "r", "key1", 2)
    assert (waiting.num_prompt_tokens, waiting.num_computed_tokens, waiting.blocks) == (10, 0, ())
    assert (waiting.arrival, waiting.first_scheduled) == (7.0, None)

    engine.step()
    half = only(checked(engine).running)
    assert (half.place, half.num_computed_tokens, half.num_output_tokens, half.max_tokens) == (Place.RUNNING, 6, 0, 3)
    assert half.first_scheduled is not None

    engine.step()
    decoding = only(checked(engine).running)
    assert (decoding.num_computed_tokens, decoding.num_output_tokens, len(decoding.blocks)) == (10, 1, 3)

    run_to_end(engine)
    after = checked(engine)
    assert (after.running, after.waiting) == ((), ())
    assert after.blocks is not None
    assert len(after.blocks.cached) == 3, "12 tokens were computed, and full blocks stay for who comes next"


def test_a_prefix_is_in_two_tables() -> None:
    engine, _ = make_engine(num_blocks=16, block_size=4)
    prompt = list(range(9))
    engine.add(make_request(prompt, max_tokens=20))
    engine.step()
    engine.add(make_request(prompt, max_tokens=20))
    engine.step()
    first, second = checked(engine).running
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert second.num_cached_tokens == 8
    assert first.seq_id != second.seq_id
    run_to_end(engine)


def test_the_sequences_of_a_request_are_told_apart() -> None:
    engine, _ = make_engine(num_blocks=16, block_size=4)
    engine.add(make_request(9, max_tokens=20, sampling={"n": 3}))
    assert [view.index for view in engine.snapshot().waiting] == [0], "the others are held back, not queued"
    engine.step()
    engine.step()
    snapshot = checked(engine)
    assert {view.index for view in snapshot.running} == {0, 1, 2}
    shared = Counter(block for view in snapshot.running for block in view.blocks)
    assert sorted(shared.values(), reverse=True)[:2] == [3, 3]
    run_to_end(engine)


def test_the_preempted_wait_first_and_say_how_often() -> None:
    engine, _ = make_engine(num_blocks=4, block_size=4, watermark=0.0)
    for _ in range(2):
        engine.add(make_request(7, max_tokens=9))
    while not engine.stats().num_preemptions:
        engine.step()
    snapshot = checked(engine)
    assert (only(snapshot.waiting).num_preemptions, only(snapshot.waiting).blocks) == (1, ())
    assert only(snapshot.waiting).num_output_tokens > 0, "what it has said is kept"
    run_to_end(engine)


def test_what_is_fetched_is_said_and_what_is_parked_is_nobodys() -> None:
    engine, runner = make_engine(num_blocks=8, block_size=4, num_host_blocks=8, costs=FixedCosts(fetch=True))
    prompt = list(range(12))
    engine.add(make_request(prompt, max_tokens=1))
    run_to_end(engine)
    engine.add(make_request(31 * [9], max_tokens=1))  # drives the first one's blocks to the host
    run_to_end(engine)
    runner.fetch_steps = lambda: 3
    engine.add(make_request(1, max_tokens=8))  # beside which the fetch takes its time
    again = make_request(prompt, max_tokens=1)
    engine.add(again)
    engine.step()
    snapshot = checked(engine)
    assert [view.place for view in snapshot.running] == [Place.RUNNING, Place.FETCHING]
    assert snapshot.blocks is not None
    assert (snapshot.blocks.num_host_blocks, snapshot.blocks.num_host_used) == (8, engine.kv_cache.num_host_used)
    engine.abort(again.request_id)
    gone = checked(engine)
    assert gone.blocks is not None
    assert len(gone.running) == 1
    assert len(gone.blocks.parked) == 2
    run_to_end(engine)


def test_of_many_that_wait_the_first_are_told_in_the_policys_order() -> None:
    engine, _ = make_engine(policy="priority", aging_seconds=1e9)
    for number in range(LISTED + 50):
        engine.add(make_request(1, priority=-number // 2))
    snapshot = engine.snapshot()
    assert snapshot.stats.num_waiting == LISTED + 50
    assert [view.priority for view in snapshot.waiting] == sorted(-number // 2 for number in range(LISTED + 50))[
        :LISTED
    ]
    engine.abort_all()


def test_it_holds_nothing_that_a_client_wrote_but_the_name_of_who_asks() -> None:
    told = {field.name for field in fields(SequenceView)}
    assert not told & {"token_ids", "prompt_token_ids", "request", "cache_salt", "stop", "sampling"}


def test_looking_changes_no_answer() -> None:
    outputs = []
    for looks in (False, True):
        engine, _ = make_engine(num_blocks=6, block_size=4, max_num_batched_tokens=8, seed=1)
        got: dict[str, list[int]] = {}
        for number in range(6):
            engine.add(make_request([number] * (3 + number), max_tokens=9, request_id=f"r{number}"))
        while engine.has_work:
            for output in engine.step():
                got.setdefault(output.request_id, []).extend(token_ids([output]))
            if looks:
                checked(engine)
        outputs.append(got)
    assert outputs[0] == outputs[1]


def test_an_encoder_has_texts_that_wait_and_no_blocks() -> None:
    limits = EngineLimits(100, 1000, 0, 4)
    config = SchedulerConfig(max_num_batched_tokens=8)
    engine = EncoderEngine(SlotRunner(replace(limits, num_blocks=1), config), limits, config)
    for _ in range(2):
        engine.add(make_request(5, pooling=True, client="c"))
    snapshot = engine.snapshot()
    assert snapshot.blocks is None
    assert [(view.num_prompt_tokens, view.client, view.max_tokens) for view in snapshot.waiting] == 2 * [(5, "c", 0)]


# Through the loop.


@pytest.fixture
def always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "SNAPSHOT_LASTS", 0.0)


@pytest.mark.usefixtures("always_new")
async def test_it_is_taken_while_the_engine_works() -> None:
    async with engine_loop(num_blocks=2000) as (loop, _, _):
        stream = loop.submit(make_request(3, max_tokens=4000, client="key7"))
        await anext(stream)
        snapshot = await soon(loop.snapshot())
        assert only(snapshot.running).client == "key7"
        await stream.aclose()


async def test_who_asks_at_once_or_soon_after_shares_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_loop() as (loop, _, _):
        first = await soon(loop.snapshot())
        monkeypatch.setattr(front, "SNAPSHOT_LASTS", 0.0)
        taken = Counter[str]()
        take = loop._engine.snapshot
        monkeypatch.setattr(loop._engine, "snapshot", lambda: taken.update(["one"]) or take())
        at_once = await soon(asyncio.gather(*[loop.snapshot() for _ in range(50)]))
        monkeypatch.setattr(front, "SNAPSHOT_LASTS", 3600.0)
        soon_after = await soon(loop.snapshot())
        assert len({id(snapshot) for snapshot in (*at_once, soon_after)}) == 1
        assert at_once[0] is not first
        assert taken.total() == 1


@pytest.mark.usefixtures("always_new")
async def test_an_idle_engine_answers_and_stays_idle() -> None:
    async with engine_loop() as (loop, _, _):
        await read(loop.submit(make_request(9, max_tokens=1)))
        before = loop.stats.last_progress
        snapshot = await soon(loop.snapshot())
        assert snapshot.running == ()
        assert snapshot.blocks is not None
        assert len(snapshot.blocks.cached) == 2
        assert loop.stalled_for() == 0
        assert loop.stats.last_progress == before, "being looked at is no progress"


@pytest.mark.usefixtures("always_new")
async def test_in_a_long_step_the_last_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "SNAPSHOT_PATIENCE", 0.01)
    async with engine_loop() as (loop, _, gate):
        gate.close()
        stream = loop.submit(make_request(3, max_tokens=3))
        await until(lambda: gate.entered.acquire(blocking=False))
        old = await soon(loop.snapshot())
        assert old.running == ()
        gate.open()
        await read(stream)
        await until(lambda: loop._snapshot is not old)  # the one that was asked for comes later
        assert (await soon(loop.snapshot())).stats.generation_tokens == 3


@pytest.mark.usefixtures("always_new")
async def test_an_engine_that_died_shows_what_it_left() -> None:
    engine, runner = make_engine(num_blocks=2000)
    loop = EngineLoop(engine)
    stream = loop.submit(make_request(3, max_tokens=4000))
    await anext(stream)
    assert len((await soon(loop.snapshot())).running) == 1

    def break_down() -> None:
        raise RunnerLost("no device")

    runner.before = break_down
    await soon(read(stream))
    await until(lambda: loop._ended.done())
    snapshot = await soon(loop.snapshot())
    assert (snapshot.running, snapshot.stats.num_running) == ((), 0)
    assert loop.dead is not None


@pytest.mark.usefixtures("always_new")
async def test_a_look_that_waits_for_an_engine_that_ends_is_answered() -> None:
    engine, runner = make_engine(num_blocks=2000)
    gate = Gate(runner)
    loop = EngineLoop(engine)
    gate.close()
    stream = loop.submit(make_request(3, max_tokens=4000))
    await until(lambda: gate.entered.acquire(blocking=False))
    look, stop = asyncio.ensure_future(loop.snapshot()), asyncio.ensure_future(loop.stop())
    await asyncio.sleep(0)
    gate.open()
    await soon(stop)
    assert (await soon(look)).stats.num_waiting == 0
    await stream.aclose()
