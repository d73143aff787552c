"""The election: who may take a Lease and when, and that nothing acts once it may be another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemill_operator import lease as lease_module
from pagemill_operator.cluster.interface import ClusterError
from pagemill_operator.cluster.leases import LEASE_RULE
from pagemill_operator.lease import LEASE_SECONDS, Alone, Election, Lease, may_take, taken

OTHERS = Lease("other", 15.0, "then", "now", 3, "7")


@pytest.mark.parametrize(
    ("lease", "unchanged_for", "may"),
    [
        (None, 0, True),
        (replace(OTHERS, holder=""), 0, True),
        (replace(OTHERS, holder="me"), 0, True),
        (OTHERS, 0, False),
        (OTHERS, 15, False),
        (OTHERS, 15.1, True),
        (replace(OTHERS, seconds=60.0), 15.1, False),
        (replace(OTHERS, renewed="1970-01-01T00:00:00Z"), 1, False),  # another machine's clock decides nothing
    ],
)
def test_who_may_take_it(lease: Lease | None, unchanged_for: float, may: bool) -> None:
    assert may_take(lease, "me", 1000.0 + unchanged_for, 1000.0) is may


def test_what_is_written_counts_the_changes_of_holder() -> None:
    assert taken(None, "me", "t") == Lease("me", LEASE_SECONDS, "t", "t", 0, "")
    assert taken(OTHERS, "me", "t") == Lease("me", LEASE_SECONDS, "t", "t", 4, "7")
    mine = replace(OTHERS, holder="me")
    assert taken(mine, "me", "t") == replace(mine, renewed="t")


class Store:
    """One Lease as an API server keeps it: a write of a version that is not the newest is refused."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.away = False
        self.hangs = False

    async def read(self) -> Lease | None:
        await self._answer()
        return self.lease

    async def write(self, lease: Lease) -> Lease:
        await self._answer()
        if lease.version != (self.lease.version if self.lease else ""):
            raise ClusterError("409: the object has been modified")
        return self.put(lease)

    def put(self, lease: Lease) -> Lease:
        self.version += 1
        self.lease = replace(lease, version=str(self.version))
        return self.lease

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise ClusterError("connection refused")


class Candidate:
    """An election, and what it lets act."""

    def __init__(self, store: Store, name: str) -> None:
        self.election = Election(store, name, asyncio.get_running_loop().time)
        self.acting = asyncio.Event()
        self.ended = asyncio.Event()
        self.could_write_at_its_end: bool | None = None

    async def act(self) -> None:
        self.acting.set()
        self.ended.clear()
        try:
            await asyncio.Event().wait()
        finally:
            self.could_write_at_its_end = self.election.leads()
            self.acting.clear()
            self.ended.set()


@asynccontextmanager
async def running(candidate: Candidate) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(candidate.election.run(candidate.act))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Where time passes only when all wait for it, and then at once: no machine is too busy for a Lease, nor a test too slow."""
    loop: Any = asyncio.get_running_loop()
    selector, now = loop._selector, 1000.0
    look = selector.select

    def pass_time(seconds: float | None) -> Any:
        nonlocal now
        found = look(0)
        assert found or seconds is not None, "everybody waits for ever"
        if not found and seconds is not None:
            now += seconds
        return found

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(selector, "select", pass_time)
    return Store()


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 5 * LEASE_SECONDS)


async def test_one_acts_and_when_told_to_end_lets_the_next_at_once(store: Store) -> None:
    one, two = Candidate(store, "one"), Candidate(store, "two")
    async with running(one) as first:
        await soon(one.acting)
        async with running(two):
            await asyncio.sleep(2 * lease_module.LEASE_SECONDS)
            assert one.acting.is_set(), "it renews"
            assert not two.acting.is_set()
            assert (one.election.leads(), two.election.leads()) == (True, False)
            freed = asyncio.get_running_loop().time()
            first.cancel()
            await soon(two.acting)
            assert one.ended.is_set()
            assert asyncio.get_running_loop().time() - freed < lease_module.LEASE_SECONDS
            assert store.lease is not None
            assert (store.lease.holder, store.lease.transitions) == ("two", 1)
    assert store.lease.holder == ""


async def test_a_holder_that_died_is_followed_when_its_time_is_over_and_not_before(store: Store) -> None:
    store.put(Lease("dead", lease_module.LEASE_SECONDS, "", "", 0, ""))
    candidate = Candidate(store, "heir")
    began = asyncio.get_running_loop().time()
    async with running(candidate):
        await soon(candidate.acting)
    assert asyncio.get_running_loop().time() - began >= lease_module.LEASE_SECONDS


@pytest.mark.parametrize("trouble", ["away", "hangs"])
async def test_a_holder_that_is_cut_off_has_stopped_before_another_may_begin(trouble: str, store: Store) -> None:
    one = Candidate(store, "one")
    async with running(one):
        await soon(one.acting)
        setattr(store, trouble, True)
        assert store.lease is not None
        cut = asyncio.get_running_loop().time()
        await soon(one.ended)
        lasted = asyncio.get_running_loop().time() - cut
        assert one.could_write_at_its_end is False, "the fence is down before anything is told to end"
        assert lasted <= lease_module.RENEW_SECONDS + 0.1
        assert store.lease.holder == "one"
        setattr(store, trouble, False)
        await soon(one.acting)
        assert store.lease.transitions == 0, "nobody else came, so it goes on"


async def test_a_process_that_was_stopped_can_write_no_more_before_it_knows(store: Store) -> None:
    """SIGSTOP: no timer has run, and yet the time is over."""
    now = 1000.0
    election = Election(store, "me", clock=lambda: now)
    assert not election.leads()
    assert await election._try(1.0)
    assert election.leads()
    now += lease_module.RENEW_SECONDS + 0.001
    assert not election.leads()


async def test_a_lease_that_another_took_is_given_up_at_once(store: Store) -> None:
    one = Candidate(store, "one")
    async with running(one):
        await soon(one.acting)
        store.put(replace(OTHERS, holder="usurper", seconds=60.0))
        await soon(one.ended)
        assert not one.election.leads()
        assert store.lease is not None
    assert store.lease.holder == "usurper", "what is another's is not given back"


async def test_a_deleted_lease_gives_its_holder_the_time_to_notice(store: Store) -> None:
    heir = Candidate(store, "heir")
    store.put(Lease("holder", lease_module.LEASE_SECONDS, "", "", 0, ""))
    async with running(heir):
        await asyncio.sleep(lease_module.RETRY_SECONDS)  # it has seen whose it is
        store.lease = None
        gone = asyncio.get_running_loop().time()
        await soon(heir.acting)
        assert asyncio.get_running_loop().time() - gone >= lease_module.LEASE_SECONDS / 2
    one = Candidate(store, "one")
    async with running(one):
        await soon(one.acting)
        store.lease = None
        await asyncio.sleep(3 * lease_module.RETRY_SECONDS)
        assert one.acting.is_set(), "the holder makes it anew"
        assert store.lease is not None


async def test_what_acts_and_fails_ends_the_candidate_and_frees_the_lease(store: Store) -> None:
    election = Election(store, "one", asyncio.get_running_loop().time)

    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(election.run(fail), 60)
    assert store.lease is not None
    assert store.lease.holder == ""


def test_the_chart_gives_what_the_election_asks_for() -> None:
    rendered = Path(__file__).parents[1] / "chart" / "snapshots" / "default.yaml"
    roles = [found for found in yaml.safe_load_all(rendered.read_text()) if found and found["kind"] == "Role"]
    rules = [rule for role in roles for rule in role["rules"] if LEASE_RULE.resource in rule["resources"]]
    assert all(rule["apiGroups"] == [LEASE_RULE.group] for rule in rules)
    assert {verb for rule in rules for verb in rule["verbs"]} == set(LEASE_RULE.verbs)


async def test_alone_acts_at_once() -> None:
    alone, acted = Alone(), asyncio.Event()

    async def act() -> None:
        acted.set()

    await alone.run(act)
    assert acted.is_set()
    assert alone.leads()
