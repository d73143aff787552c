"""The cache: what an event, an answer or a list makes of it, in whatever order they come."""

from __future__ import annotations

from typing import Any

from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import Key, ObjectRef
from pagemill_operator.labels import DEPLOYMENT_LABEL, KIND

KEY = Key("ns", "llm")


def thing(
    version: int, *, kind: str = "Pod", name: str = "p", uid: str = "u", label: str | None = "llm"
) -> dict[str, Any]:
    labels = {} if label is None else {DEPLOYMENT_LABEL: label}
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": kind, "metadata": {**metadata, "managedFields": [{}]}}


def versions(cache: ObjectCache, kind: str = "Pod") -> list[str]:
    return [found["metadata"]["resourceVersion"] for found in cache.children(KEY, kind)]


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = ObjectCache()
    for version in (5, 9, 7, 10):
        assert cache.put(thing(version)) == KEY
    assert versions(cache) == ["10"]


def test_another_object_of_the_same_name_does() -> None:
    cache = ObjectCache()
    cache.put(thing(50))
    cache.put(thing(3, uid="v"))
    assert versions(cache) == ["3"]
    assert cache.remove(thing(50)) == KEY, "a late word of the old one's end"
    assert versions(cache) == ["3"]


def test_children_are_by_deployment_and_kind_in_the_order_of_names() -> None:
    cache = ObjectCache()
    for found in (
        thing(1, name="b", uid="1"),
        thing(2, name="a", uid="2"),
        thing(3, kind="Service", uid="3"),
        thing(4, name="c", uid="4", label="other"),
        thing(5, name="d", uid="5", label=None),
    ):
        cache.put(found)
    assert versions(cache) == ["2", "1"]
    assert versions(cache, "Service") == ["3"]
    assert cache.keys() == (KEY, Key("ns", "other"))


def test_an_object_that_loses_its_label_is_no_child_any_more() -> None:
    cache = ObjectCache()
    cache.put(thing(1))
    cache.put(thing(2, label=None))
    assert versions(cache) == []
    assert cache.keys() == ()


def test_the_resource_is_its_own_key_and_has_no_managed_fields() -> None:
    cache = ObjectCache()
    assert cache.put(thing(1, kind=KIND, name="llm", label=None)) == KEY
    found = cache.resource(KEY)
    assert found is not None
    assert "managedFields" not in found["metadata"]
    cache.remove(found)
    assert cache.resource(KEY) is None


def test_a_list_takes_out_what_was_there_before_it_and_is_not_in_it() -> None:
    """A deletion whose event was lost; what was made or changed while the list was under way stays."""
    cache = ObjectCache()
    for number in range(3):
        cache.put(thing(10 + number, name=f"p{number}", uid=str(number)))
    cache.put(thing(1, kind="Service", uid="s"))
    before = cache.identities("Pod")
    cache.put(thing(20, name="p1", uid="1"))
    cache.put(thing(21, name="p3", uid="3"))
    cache.replace("Pod", [thing(10, name="p0", uid="0")], before)
    assert versions(cache) == ["10", "20", "21"]
    assert versions(cache, "Service") == ["1"]


def test_what_was_deleted_without_a_word_is_forgotten() -> None:
    """Of kinds that are only listed no event comes; what stayed here would be deleted again at each look."""
    cache = ObjectCache()
    cache.put(thing(1, kind="HTTPRoute", name="r"))
    cache.put(thing(2, kind="HTTPRoute", name="s", uid="v"))
    cache.forget(ObjectRef("gateway.networking.k8s.io/v1", "HTTPRoute", "ns", "r"))
    cache.forget(ObjectRef("gateway.networking.k8s.io/v1", "HTTPRoute", "ns", "never there"))
    assert versions(cache, "HTTPRoute") == ["2"]
