"""What kopf is told to do: watch, and nothing that writes to a user's objects."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path

import kopf
import pytest

from pagemill_operator import handlers
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import Key
from pagemill_operator.cluster.kinds import FOLLOWED, KINDS, RULES, Rule
from pagemill_operator.gateway_key import gateway_key
from pagemill_operator.labels import DEPLOYMENT_LABEL
from pagemill_operator.queue import KeyQueue


@pytest.fixture
def queue() -> KeyQueue:
    return KeyQueue()


@pytest.fixture
def cache() -> ObjectCache:
    return ObjectCache()


@pytest.fixture
def heard() -> list[tuple[str, str | None]]:
    """What of each event was passed on."""
    return []


@pytest.fixture
def registry(cache: ObjectCache, queue: KeyQueue, heard: list[tuple[str, str | None]]) -> kopf.OperatorRegistry:
    return handlers.register(
        cache, queue, problem=lambda: "a reconcile hangs", heard=lambda kind, event: heard.append((kind, event))
    )


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
    registry: kopf.OperatorRegistry, cache: ObjectCache, queue: KeyQueue, heard: list[tuple[str, str | None]]
) -> None:
    follow = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}
    key = Key("ns", "llm")
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1", "labels": {DEPLOYMENT_LABEL: "llm"}}
    for kind, found in (("ADDED", 1), ("MODIFIED", 1), ("DELETED", 0), (None, 1)):
        await follow["pods"](event={"type": kind, "object": {"metadata": metadata}})
        assert len(cache.children(key, "Pod")) == found
        assert await asyncio.wait_for(queue.take(), 60) == key
        queue.done(key)
    assert heard == [("Pod", "ADDED"), ("Pod", "MODIFIED"), ("Pod", "DELETED"), ("Pod", None)]
    (pod,) = cache.children(key, "Pod")
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")


async def test_a_gateway_looks_at_its_namespaces_deployments_and_they_at_it(
    registry: kopf.OperatorRegistry, queue: KeyQueue
) -> None:
    follow = {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}

    async def event(kind: str, name: str, label: str | None, **spec: object) -> set[Key]:
        labels = {} if label is None else {DEPLOYMENT_LABEL: label}
        metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": labels}
        await follow[kind](event={"type": "ADDED", "object": {"metadata": metadata, "spec": spec}})
        taken = set()
        while (key := queue.take_due()) is not None:
            queue.done(key)
            taken.add(key)
        return taken

    routed, plain, gateway = Key("ns", "routed"), Key("ns", "plain"), gateway_key("ns")
    assert await event("llmdeployments", "routed", None, routing="leastLoad") == {routed, gateway}
    assert await event("llmdeployments", "plain", None) == {plain, gateway}
    assert await event("services", "routed-replicas", "routed") == {routed, gateway}
    assert await event("pods", "routed-0", "routed") == {routed}
    assert await event("pods", "pagemill-gateway-0", gateway.name) == {gateway, routed}


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
    assert settings.networking.enforce_retry_after
    assert isinstance(settings.networking.error_backoffs, handlers.Backoffs)
    assert len(settings.watching.label_selectors) == len(FOLLOWED) - 1


def test_the_pauses_after_an_api_error_grow_and_never_end() -> None:
    """Where kopf's own list of them ends, after a minute, an API server that says 503 ends the watch and the operator."""
    backoffs = handlers.Backoffs()
    for _ in range(2):  # one object serves every request
        pauses = list(itertools.islice(backoffs, 200))
        assert 0.5 < pauses[0] < 2
        assert all(10 < pause < 16 for pause in pauses[6:])


async def test_the_probe_fails_with_the_problem(registry: kopf.OperatorRegistry) -> None:
    (probe,) = [handler.fn for handler in registry._activities.get_all_handlers() if handler.id == "operator"]
    with pytest.raises(kopf.PermanentError, match="a reconcile hangs"):
        probe()


def test_the_rules_read_no_secrets_and_ask_for_no_more_than_is_used() -> None:
    finalizers = Rule("pagemill.dev", "llmdeployments/finalizers", ("update",))
    others = {"llmdeployments/status", "endpointslices"}  # the second only to be granted to gateways
    assert {rule.resource for rule in RULES if rule != finalizers} == {kind.plural for kind in KINDS} | others
    assert Rule("pagemill.dev", "llmdeployments", ("list", "watch")) in RULES, (
        "never the spec or metadata of the resource"
    )
    unwanted = ("*", "get", "update", "deletecollection", "escalate")
    assert not any(verb in rule.verbs for rule in RULES if rule != finalizers for verb in unwanted)
    assert not any({"list", "watch"} & set(rule.verbs) for rule in RULES if rule.resource == "secrets")
    assert all({"list", "watch"} <= set(kind.verbs) for kind in FOLLOWED)
