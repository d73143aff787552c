"""The object store against what Kubernetes' API server does: versions, generations, ownership."""

from __future__ import annotations

from typing import Any

from pagemill_operator.cluster.local.store import Change, ObjectStore, deployment_of
from tests.operator.cluster.local import manifests


def service(name: str = "tiny", owner: str = "", **spec: Any) -> dict[str, Any]:
    references = [{"apiVersion": "v1", "kind": "Any", "name": "any", "uid": owner}] if owner else []
    metadata = {"name": name, "namespace": "default", "ownerReferences": references}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def test_a_spec_change_is_a_new_generation_a_label_is_not() -> None:
    store = ObjectStore()
    first = store.apply(service(port=1))
    labelled = service(port=1)
    labelled["metadata"]["labels"] = {"a": "b"}
    second, third = store.apply(labelled), store.apply(service(port=2))
    assert [found["metadata"]["generation"] for found in (first, second, third)] == [1, 1, 2]
    versions = [int(found["metadata"]["resourceVersion"]) for found in (first, second, third)]
    assert versions == sorted(set(versions))
    assert {found["metadata"]["uid"] for found in (first, second, third)} == {first["metadata"]["uid"]}
    assert "labels" not in third["metadata"], "what is no longer applied is gone"


def test_applying_the_same_again_changes_nothing_and_tells_nobody() -> None:
    store, changes = ObjectStore(), list[Change]()
    store.apply(service(port=1))
    store.listen(changes.append)
    store.apply(service(port=1))
    assert changes == []


def test_the_status_outlives_an_apply_and_is_no_generation() -> None:
    store = ObjectStore()
    found = store.apply(service(port=1))
    store.set_status(found, {"loadBalancer": {}})
    after = store.apply(service(port=2))
    assert after["status"] == {"loadBalancer": {}}
    assert after["metadata"]["generation"] == 2


def test_owned_objects_go_with_their_owner_and_their_owned_too() -> None:
    store = ObjectStore()
    top = store.apply(service("top"))
    middle = store.apply(service("middle", owner=top["metadata"]["uid"]))
    store.apply(service("bottom", owner=middle["metadata"]["uid"]))
    store.apply(service("other"))
    store.delete("Service", "default", "top")
    assert [found["metadata"]["name"] for found in store.all("Service")] == ["other"]


def test_a_pod_only_gets_a_deletion_time() -> None:
    """Whoever runs it takes it out when its process has ended."""
    store = ObjectStore()
    owner = store.apply(service("owner"))
    pod = store.apply({**service("pod", owner=owner["metadata"]["uid"]), "kind": "Pod"})
    store.delete("Service", "default", "owner")
    left = store.get("Pod", "default", "pod")
    assert left is not None
    assert "deletionTimestamp" in left["metadata"]
    store.remove(pod)
    assert store.all("Pod") == ()


def test_gone_objects_are_no_error() -> None:
    store = ObjectStore()
    gone = store.apply(service())
    store.remove(gone)
    store.remove(gone)
    store.delete("Service", "default", "tiny")
    store.set_status(gone, {"a": 1})
    assert store.all("Service") == ()


def test_an_object_knows_its_llm_deployment() -> None:
    assert deployment_of(manifests.resource("a")) == ("default", "a")
    assert deployment_of(manifests.deployment(name="b")) == ("default", "b")
    assert deployment_of(service()) is None
