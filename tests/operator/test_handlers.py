"""What kopf is told to do: watch, and nothing that writes to a user's objects."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import kopf
import pytest

from pagemill_operator import handlers
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import Key
from pagemill_operator.cluster.kinds import FOLLOWED, KINDS, RULES, Rule
from pagemill_operator.labels import DEPLOYMENT_LABEL
from pagemill_operator.queue import KeyQueue
from pagemill_operator.worker import Worker


@pytest.fixture
def queue() -> KeyQueue:
    return KeyQueue()


@pytest.fixture
def cache() -> ObjectCache:
    return ObjectCache()


@pytest.fixture
def registry(cache: ObjectCache, queue: KeyQueue) -> kopf.OperatorRegistry:
    async def nothing(_: Key) -> None:
        return None

    return handlers.register(cache, queue, Worker(queue, nothing))


def test_every_followed_kind_is_watched_once(registry: kopf.OperatorRegistry) -> None:
    watched = [handler.selector for handler in registry._watching.get_all_handlers()]
    assert sorted((str(found.group), str(found.any_name)) for found in watched if found) == sorted(
        (kind.group, kind.plural) for kind in FOLLOWED
    )


def test_nothing_is_registered_that_writes_annotations_or_finalizers(registry: kopf.OperatorRegistry) -> None:
    assert not list(registry._changing.get_all_handlers())
    assert not list(registry._spawning.get_all_handlers())
    assert not list(registry._webhooks.get_all_handlers())
    used = set(re.findall(r"kopf\.on\.(\w+)|@kopf\.(index|timer|daemon)", Path(handlers.__file__).read_text()))
    assert used == {("login", ""), ("startup", ""), ("probe", ""), ("event", "")}


async def test_an_event_feeds_the_cache_and_queues_its_key(
    registry: kopf.OperatorRegistry, cache: ObjectCache, queue: KeyQueue
) -> None:
    follow = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}
    key = Key("ns", "llm")
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1", "labels": {DEPLOYMENT_LABEL: "llm"}}
    for kind, found in (("ADDED", 1), ("MODIFIED", 1), ("DELETED", 0), (None, 1)):
        await follow["pods"](event={"type": kind, "object": {"metadata": metadata}})
        assert len(cache.children(key, "Pod")) == found
        assert await asyncio.wait_for(queue.take(), 5) == key
        queue.done(key)
    (pod,) = cache.children(key, "Pod")
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")


async def test_someone_elses_pod_is_nobodys_business(registry: kopf.OperatorRegistry, queue: KeyQueue) -> None:
    follow = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    await follow["pods"](event={"type": "ADDED", "object": {"metadata": metadata}})
    assert len(queue) == 0


async def test_settings_keep_kopf_to_what_the_role_allows(registry: kopf.OperatorRegistry) -> None:
    settings = kopf.OperatorSettings()
    (configure,) = [
        handler.fn for handler in registry._activities.get_all_handlers() if handler.fn.__name__ == "configure"
    ]
    configure(settings=settings)
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    timeouts = (settings.watching.server_timeout, settings.watching.client_timeout)
    assert all(isinstance(seconds, int) for seconds in timeouts), "the API server refuses a fraction"
    assert len(settings.watching.label_selectors) == len(FOLLOWED) - 1


async def test_the_probe_fails_when_the_worker_is_stuck(registry: kopf.OperatorRegistry) -> None:
    (probe,) = [handler.fn for handler in registry._activities.get_all_handlers() if handler.id == "worker"]
    with pytest.raises(kopf.PermanentError, match="the worker does not run"):
        probe()


def test_the_rules_ask_for_no_secrets_and_no_more_than_is_used() -> None:
    assert {rule.resource for rule in RULES} == {kind.plural for kind in KINDS} | {"llmdeployments/status"}
    assert Rule("pagemill.dev", "llmdeployments", ("list", "watch")) in RULES, (
        "never the spec or metadata of the resource"
    )
    assert not any(
        verb in rule.verbs for rule in RULES for verb in ("*", "get", "update", "deletecollection", "escalate")
    )
    assert all({"list", "watch"} <= set(kind.verbs) for kind in FOLLOWED)
