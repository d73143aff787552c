"""Whether the watches speak: what must be told of, by when, and what excuses silence."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.hearing import PATIENCE, Hearing
from pagemill_operator.labels import DEPLOYMENT_LABEL
from tests.operator.clock import Clock

LONG = 10 * PATIENCE


@pytest.fixture
def hearing(clock: Clock) -> Hearing:
    return Hearing(clock)


def test_what_was_seen_and_not_told_of_for_long_is_a_dead_watch(hearing: Hearing, clock: Clock) -> None:
    hearing.expect("Pod", "a", 5)
    clock.now += PATIENCE
    assert hearing.deaf(LONG) is None
    clock.now += 1
    assert hearing.deaf(LONG) == "no event of Pod objects for 181s, though there was one to tell"


def test_an_event_of_that_version_or_a_newer_one_satisfies(hearing: Hearing, clock: Clock) -> None:
    for uid, told in (("a", 5), ("b", 9)):
        hearing.expect("Pod", uid, 5)
        hearing.hear("Pod", uid, told)
    hearing.hear("Pod", "c", 5)
    hearing.expect("Pod", "c", 5)  # a write that changed nothing answers with the version that is known
    clock.now += LONG
    assert hearing.deaf(LONG) is None


@pytest.mark.parametrize("other", [("Pod", "a", 4), ("Pod", "b", 5), ("Service", "a", 5)])
def test_another_event_does_not(other: tuple[str, str, int], hearing: Hearing, clock: Clock) -> None:
    hearing.expect("Pod", "a", 5)
    hearing.hear(*other)
    clock.now += LONG
    assert hearing.deaf(LONG)


def test_seeing_it_again_and_again_puts_nothing_off(hearing: Hearing, clock: Clock) -> None:
    for version in range(5, 10):
        hearing.expect("Pod", "a", version)
        clock.now += PATIENCE / 4
    assert hearing.deaf(LONG)


def test_what_is_gone_is_not_waited_for(hearing: Hearing, clock: Clock) -> None:
    hearing.expect("Pod", "a", 5)
    hearing.forget("Pod", "a")
    clock.now += LONG
    assert hearing.deaf(LONG) is None


def test_an_api_server_that_is_away_or_barely_back_excuses_silence(hearing: Hearing, clock: Clock) -> None:
    hearing.expect("Pod", "a", 5)
    clock.now += LONG
    assert hearing.deaf(0.0) is None
    assert hearing.deaf(PATIENCE) is None
    assert hearing.deaf(PATIENCE + 1)


def found(version: int, kind: str = "Pod", uid: str = "u", name: str = "p") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"kind": kind, "metadata": {**metadata, "labels": {DEPLOYMENT_LABEL: "llm"}}}


@pytest.fixture
def cache(hearing: Hearing) -> ObjectCache:
    made = ObjectCache()
    made.hearing = hearing
    return made


def test_the_cache_expects_what_lists_and_answers_bring_and_hears_events(cache: ObjectCache, clock: Clock) -> None:
    cache.put(found(5))
    cache.put(found(5, uid="v", name="q"), heard=True)
    cache.put(found(5, kind="Event", uid="w"))  # not watched
    clock.now += LONG
    assert (cache.hearing.deaf(LONG) or "").startswith("no event of Pod")
    cache.put(found(6), heard=True)
    assert cache.hearing.deaf(LONG) is None


def test_the_cache_waits_for_no_word_of_what_has_gone(cache: ObjectCache, clock: Clock) -> None:
    cache.put(found(5))
    cache.put(found(7, uid="v"), heard=True)  # another of its name
    cache.put(found(8, name="q", uid="w"))
    cache.remove(found(8, name="q", uid="w"))
    cache.put(found(9, name="r", uid="x"))
    cache.replace("Pod", [found(7, uid="v")], cache.identities("Pod"))
    clock.now += LONG
    assert cache.hearing.deaf(LONG) is None
