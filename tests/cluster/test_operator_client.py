"""The operator's side of the Kubernetes API against a real one: what a write does, what a refusal becomes, what a list brings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import client
from testbed.cluster import Cluster
from testbed.ready import eventually

from pagemill_operator.cluster import kubernetes as kubernetes_module
from pagemill_operator.cluster.api import Api, connect
from pagemill_operator.cluster.cache import ObjectCache
from pagemill_operator.cluster.interface import ClusterError, Key, NameTaken, ObjectRef
from pagemill_operator.cluster.kubernetes import KubernetesCluster
from pagemill_operator.labels import API_VERSION, DEPLOYMENT_LABEL, FIELD_MANAGER, KIND

pytestmark = pytest.mark.cluster
NAME = "llm"
KUBECONFIG = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"


class Client:
    """The operator's cluster for one namespace, with a cache that nobody else feeds."""

    def __init__(self, api: Api, session: aiohttp.ClientSession, namespace: str) -> None:
        self.cache = ObjectCache()
        self.api = api
        self.key = Key(namespace, NAME)
        self.cluster = KubernetesCluster(api, self.cache, session, (namespace,))

    def child(self, api_version: str, kind: str, **body: Any) -> dict[str, Any]:
        metadata = {"name": NAME, "namespace": self.key.namespace, "labels": {DEPLOYMENT_LABEL: NAME}}
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}

    def service(self, **more: Any) -> dict[str, Any]:
        return self.child("v1", "Service", spec={"ports": [{"name": "http", "port": 80}], **more})

    def deployment(self, replicas: int, secret: str | None = None) -> dict[str, Any]:
        """Of a pod that can't start for want of an image; `secret` is one that it mounts."""
        labels = {DEPLOYMENT_LABEL: NAME}
        container: dict[str, Any] = {"name": "server", "image": "none", "imagePullPolicy": "Never"}
        pod: dict[str, Any] = {"containers": [container]}
        if secret is not None:
            container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
            pod["volumes"] = [{"name": "v", "secret": {"secretName": secret}}]
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        return self.child("apps/v1", "Deployment", spec=spec)

    async def only(self, kind: str) -> dict[str, Any]:
        (found,) = await self.cluster.children(self.key, kind)
        return dict(found)


@pytest.fixture
async def operator(pagemill: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(KUBECONFIG, str(pagemill.kubeconfig))
    async with await connect() as api, aiohttp.ClientSession() as session:
        yield Client(api, session, namespace)


async def test_apply_makes_changes_and_takes_back(operator: Client) -> None:
    await operator.cluster.apply(operator.service(externalName="a.example", type="ExternalName"))
    first = await operator.only("Service")
    await operator.cluster.apply(operator.service(externalName="a.example", type="ExternalName"))
    again = await operator.only("Service")
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], "the same again is no write"
    await operator.cluster.apply(operator.service())
    last = await operator.only("Service")
    assert last["metadata"]["uid"] == first["metadata"]["uid"]
    assert (last["spec"]["type"], last["spec"].get("externalName")) == ("ClusterIP", None)


async def test_apply_takes_back_what_a_hand_has_changed(operator: Client, pagemill: Cluster) -> None:
    await operator.cluster.apply(operator.deployment(replicas=0))
    namespace = operator.key.namespace
    pagemill.kubectl("scale", "deployment", NAME, "-n", namespace, "--replicas=1")
    await operator.cluster.apply(operator.deployment(replicas=0))
    assert (await operator.only("Deployment"))["spec"]["replicas"] == 0
    shown = pagemill.get("deployment", NAME, "-n", namespace, "--show-managed-fields")
    assert FIELD_MANAGER in {entry["manager"] for entry in shown["metadata"]["managedFields"]}


async def test_a_port_whose_number_a_hand_changed_is_put_right(operator: Client, pagemill: Cluster) -> None:
    """The number is what an apply tells ports apart by: it would put ours beside it, and be refused for the name."""
    await operator.cluster.apply(operator.service())
    change = [{"op": "replace", "path": "/spec/ports/0/port", "value": 9000}]
    pagemill.kubectl("patch", "service", NAME, "-n", operator.key.namespace, "--type=json", "-p", json.dumps(change))
    for wanted in (80, 81):
        service = operator.service()
        service["spec"]["ports"][0]["port"] = wanted
        await operator.cluster.apply(service)
        assert [port["port"] for port in (await operator.only("Service"))["spec"]["ports"]] == [wanted]


async def test_what_others_made_is_left_to_them(operator: Client, pagemill: Cluster) -> None:
    namespace = operator.key.namespace
    pagemill.kubectl("create", "service", "clusterip", NAME, "-n", namespace, "--tcp=80")
    before = pagemill.get("service", NAME, "-n", namespace)
    with pytest.raises(NameTaken):
        await operator.cluster.apply(operator.service())
    assert pagemill.get("service", NAME, "-n", namespace) == before
    pagemill.kubectl("delete", "service", NAME, "-n", namespace)
    await operator.cluster.apply(operator.service())
    # A hand that takes the labels away does not make it another's.
    pagemill.kubectl("label", "service", NAME, "-n", namespace, f"{DEPLOYMENT_LABEL}-")
    operator.cache.remove(await operator.only("Service"))
    await operator.cluster.apply(operator.service())
    assert (await operator.only("Service"))["metadata"]["labels"] == {DEPLOYMENT_LABEL: NAME}


async def test_what_the_server_refuses_is_its_own_words(operator: Client) -> None:
    wrong = operator.service()
    wrong["spec"]["ports"][0]["port"] = 99999
    with pytest.raises(ClusterError, match=r"422: .*spec\.ports\[0\]\.port.*between 1 and 65535") as caught:
        await operator.cluster.apply(wrong)
    assert caught.value.refused
    with pytest.raises(ClusterError, match="field not declared in schema"):
        await operator.cluster.apply(operator.service(colour="red"))


async def test_what_the_account_may_not_do_is_refused(
    operator: Client, pagemill: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = operator.key.namespace
    reader = ("--clusterrole=view", f"--serviceaccount={namespace}:default")
    pagemill.kubectl("create", "rolebinding", "reader", "-n", namespace, *reader)
    token = pagemill.kubectl("create", "token", "default", "-n", namespace).strip()
    kubeconfig = json.loads(pagemill.kubectl("config", "view", "--raw", "-o", "json"))
    kubeconfig["users"][0]["user"] = {"token": token}
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    monkeypatch.setattr(KUBECONFIG, str(tmp_path / "config"))
    async with await connect() as api, aiohttp.ClientSession() as session:
        powerless = Client(api, session, namespace)
        with pytest.raises(ClusterError, match=r"403: .*cannot patch resource \"services\"") as caught:
            await powerless.cluster.apply(powerless.service())
        assert caught.value.refused
        with pytest.raises(ClusterError, match=r"403: .*cannot list resource"):
            await powerless.cluster.refresh()


async def test_delete_takes_what_is_owned_and_twice_is_no_error(operator: Client, pagemill: Cluster) -> None:
    await operator.cluster.apply(operator.deployment(replicas=0))
    namespace = operator.key.namespace
    eventually("its ReplicaSet", lambda: pagemill.kubectl("get", "rs", "-n", namespace, "-o", "name").strip() or None)
    reference = ObjectRef("apps/v1", "Deployment", namespace, NAME)
    await operator.cluster.delete(reference)
    await operator.cluster.delete(reference)
    eventually(
        "its end", lambda: not pagemill.kubectl("get", "deploy,rs", "-n", namespace, "-o", "name").strip() or None
    )


async def test_a_status_patch_writes_what_differs_and_removes_what_is_gone(operator: Client, pagemill: Cluster) -> None:
    resource = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME},
        "spec": {"model": "org/name", "suspend": True},
    }
    pagemill.apply(resource, operator.key.namespace)
    await operator.cluster.refresh()
    before = await operator.cluster.resource(operator.key)
    assert before is not None
    await operator.cluster.patch_status(operator.key, {"observedGeneration": 1, "url": "http://one", "image": "two"})
    one = await operator.cluster.resource(operator.key)
    assert one is not None
    assert one["status"]["url"] == "http://one"
    assert one["metadata"]["generation"] == before["metadata"]["generation"]
    status = {name: value for name, value in one["status"].items() if name != "url"}
    await operator.cluster.patch_status(operator.key, {**status, "url": None})
    two = await operator.cluster.resource(operator.key)
    assert two is not None
    assert "url" not in two["status"]
    await operator.cluster.patch_status(operator.key, two["status"])
    assert await operator.cluster.resource(operator.key) == two, "nothing differs: nothing is asked of the API"
    await operator.cluster.patch_status(Key(operator.key.namespace, "gone"), {"url": "x"})


async def test_refresh_brings_everything_of_ours_page_by_page(
    operator: Client, pagemill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_module, "_PAGE", 2)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        manifest = operator.service()
        manifest["metadata"]["name"] = name
        pagemill.apply(manifest, operator.key.namespace)
    foreign = operator.service()
    foreign["metadata"] = {"name": "foreign"}
    pagemill.apply(foreign, operator.key.namespace)
    assert await operator.cluster.refresh() == (operator.key,)
    found = await operator.cluster.children(operator.key, "Service")
    assert [service["metadata"]["name"] for service in found] == names
    assert {(service["apiVersion"], service["kind"]) for service in found} == {("v1", "Service")}
    pagemill.kubectl("delete", "service", "s1", "-n", operator.key.namespace)
    await operator.cluster.refresh()
    found = await operator.cluster.children(operator.key, "Service")
    assert [service["metadata"]["name"] for service in found] == ["s0", "s2", "s3", "s4"]


async def test_a_pod_that_waits_for_a_volume_says_for_which(operator: Client) -> None:
    """Only events tell of it; a pod that runs or was never placed is not asked about."""
    await operator.cluster.apply(operator.deployment(replicas=1, secret="absent"))
    async with asyncio.timeout(300):
        while True:
            await operator.cluster.refresh()
            events = await operator.cluster.children(operator.key, "Event")
            if any(event["reason"] == "FailedMount" for event in events):
                break
            await asyncio.sleep(0.5)
    (message, *_) = [event["message"] for event in events if event["reason"] == "FailedMount"]
    assert 'secret "absent" not found' in message


def test_a_volume_that_fails_is_in_the_status(pagemill: Cluster, namespace: str) -> None:
    mount = {
        "volumes": [{"name": "v", "secret": {"secretName": "absent"}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    spec = {"model": "org/name", "accelerator": "cpu", "pod": mount}
    pagemill.apply({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": NAME}, "spec": spec}, namespace)
    path = 'jsonpath={.status.conditions[?(@.type=="Degraded")].message}'
    message = eventually(
        "the reason",
        lambda: (
            found if "absent" in (found := pagemill.kubectl("get", "llmd", NAME, "-n", namespace, "-o", path)) else None
        ),
    )
    assert 'secret "absent" not found' in message


async def test_the_api_says_whether_the_crd_is_there(operator: Client) -> None:
    assert await operator.cluster.serves_resource()


async def test_an_api_server_that_is_not_there_can_be_asked_again() -> None:
    async with Api(client.Configuration(host="http://127.0.0.1:1")) as api, aiohttp.ClientSession() as session:
        with pytest.raises(ClusterError, match="Cannot connect") as caught:
            await KubernetesCluster(api, ObjectCache(), session, ()).refresh()
    assert not caught.value.refused
