"""The Job before the pods, on a real cluster, with a hub of ours: what it finds is served, what it can't have starts no pod."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import LABEL, Deployed, deploy
from testbed.images import REPOSITORY
from testbed.ready import eventually

from pagemill.sizes import format_size
from tests.pagemill.hub_server import HubServer, serve

pytestmark = pytest.mark.cluster

REPO = "org/tiny"
LOCAL = "pagemill/tiny"  # every server image has it
LOAD = 600  # seconds: torch's import on a machine that does a lot else
SERVING = "app.kubernetes.io/name=pagemill-server"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The image's tiny model, for a hub to have."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(REPOSITORY / "examples" / "tiny_models.py"), str(folder)], check=True)
    return {path.name: path.read_bytes() for path in sorted((folder / "pagemill" / "tiny").iterdir())}


@pytest.fixture
def hub(cluster: Cluster, files: dict[str, bytes]) -> Iterator[HubServer]:
    """Where pods of the cluster reach it."""
    if cluster.run is None:
        pytest.skip("pods of a cluster that was there before can't reach this machine")
    with serve(HubServer(repos={REPO: dict(files)}), cluster.run.host_address) as running:
        yield running


def at(hub: HubServer) -> dict[str, Any]:
    """A deployment's `pod` that asks this hub."""
    return {"env": [{"name": "HF_ENDPOINT", "value": hub.url}]}


def replicas_ever(deployed: Deployed) -> list[str]:
    """Deployments and replica sets that were made; a pod has one."""
    listed = deployed.cluster.kubectl(
        "get", "deployments,replicasets", "-n", deployed.namespace, "-l", f"{LABEL}={deployed.name}", "-o", "name"
    )
    return listed.split()


def serving_pods(deployed: Deployed) -> list[dict[str, Any]]:
    selector = f"{LABEL}={deployed.name},{SERVING}"
    return list(deployed.cluster.get("pods", "-n", deployed.namespace, "-l", selector)["items"])


def jobs(deployed: Deployed) -> list[dict[str, Any]]:
    return list(
        deployed.cluster.get("jobs", "-n", deployed.namespace, "-l", f"{LABEL}={deployed.name}")["items"],
    )


def command(pod: dict[str, Any]) -> list[str]:
    return list(pod["spec"]["containers"][0]["command"])


def test_a_hubs_model_is_pinned_and_served_by_its_name(pagemill: Cluster, namespace: str, hub: HubServer) -> None:
    deployed = deploy(pagemill, namespace, "pinned", model=REPO, pod=at(hub))
    deployed.await_condition("Ready", "True", seconds=LOAD)
    (pod,) = serving_pods(deployed)
    assert command(pod)[-1] == f"hf://{REPO}@{hub.commit}"
    assert "--served-model-name" in pod["spec"]["containers"][0]["args"]
    assert deployed.get()["status"]["modelRevision"] == hub.commit
    eventually("the Job is gone", lambda: not jobs(deployed) or None)
    hub.commit, hub.former = "d" * 40, ("c" * 40,)  # main moves on: a change of another field keeps what was pinned
    deploy(pagemill, namespace, "pinned", model=REPO, pod=at(hub), maxModelLen=256)
    deployed.await_condition("Ready", "True", seconds=LOAD)
    assert {command(pod)[-1] for pod in serving_pods(deployed)} == {f"hf://{REPO}@{'c' * 40}"}


def test_a_model_in_the_image_needs_no_hub(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(
        pagemill, namespace, "local", model=LOCAL, pod={"env": [{"name": "HF_ENDPOINT", "value": "http://127.0.0.1:9"}]}
    )
    deployed.await_condition("Ready", "True", seconds=LOAD)
    (pod,) = serving_pods(deployed)
    assert command(pod)[-1] == LOCAL


def test_a_gated_model_starts_no_pod_until_it_has_a_token(pagemill: Cluster, namespace: str, hub: HubServer) -> None:
    hub.token = "hf_right"
    deployed = deploy(pagemill, namespace, "gated", model=REPO, pod=at(hub))
    told = deployed.await_condition("Ready", "False", "GatedModel")
    assert "hfTokenSecretRef" in told["message"]
    assert deployed.condition("ModelAvailable")["status"] == "False"
    assert replicas_ever(deployed) == []
    pagemill.kubectl("create", "secret", "generic", "hub", "-n", namespace, "--from-literal=token=hf_right")
    deploy(pagemill, namespace, "gated", model=REPO, pod=at(hub), hfTokenSecretRef={"name": "hub"})
    deployed.await_condition("Ready", "True", seconds=LOAD)


def test_a_hub_whose_certificate_an_authority_of_ones_own_has_signed(
    pagemill: Cluster, namespace: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    if pagemill.run is None:
        pytest.skip("pods of a cluster that was there before can't reach this machine")
    context, certificate = certified(tmp_path, pagemill.run.host_address)
    hub = HubServer(repos={REPO: dict(files)})
    with serve(hub, pagemill.run.host_address, context):
        deployed = deploy(pagemill, namespace, "private", model=REPO, pod=at(hub))
        told = deployed.await_condition("Ready", "False", "HubUnreachable")
        assert "CERTIFICATE_VERIFY_FAILED" in told["message"]
        assert "SSL_CERT_FILE" in told["message"], "what to do about it"
        assert replicas_ever(deployed) == []
        authority = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "authority"}}
        pagemill.apply({**authority, "data": {"ca.crt": certificate.read_text()}}, namespace)
        trusting = {
            "env": [*at(hub)["env"], {"name": "SSL_CERT_FILE", "value": "/etc/authority/ca.crt"}],
            "volumes": [{"name": "authority", "configMap": {"name": "authority"}}],
            "volumeMounts": [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}],
        }
        deploy(pagemill, namespace, "private", model=REPO, pod=trusting)
        deployed.await_condition("Ready", "True", seconds=LOAD)
        assert deployed.get()["status"]["modelRevision"] == hub.commit


def test_a_cache_without_room_starts_no_pod_until_it_has(
    pagemill: Cluster, namespace: str, hub: HubServer, tmp_path: Path
) -> None:
    if pagemill.node is None:
        pytest.skip("needs the file systems of a node of our own")

    def room(size: str, *more: str) -> None:  # the node's own mount: this machine sees an empty folder
        mount = ("mount", "-t", "tmpfs", "-o", ",".join((*more, f"size={size}", "mode=0777")), "tmpfs", str(tmp_path))
        assert pagemill.node is not None
        subprocess.run(pagemill.node.sandbox.enter(*mount), check=True)

    room("128k")
    shared_claim(pagemill, namespace, tmp_path)
    deployed = deploy(pagemill, namespace, "full", model=REPO, modelCache={"existingClaim": "weights"}, pod=at(hub))
    told = deployed.await_condition("Ready", "False", "DiskFull")
    needed = format_size(sum(map(len, hub.repos[REPO].values())))
    assert f"128.0 KiB free, {needed} are still to be fetched" in told["message"]
    assert hub.fetched() == {}, "not a byte before there is room for all"
    assert replicas_ever(deployed) == []
    room("4m", "remount")
    deployed.await_condition("Ready", "True", seconds=LOAD)  # the next look is taken by itself


def test_what_does_not_fit_takes_no_gpu(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(
        pagemill, namespace, "large", accelerator="gpu", engine={}, gpu={"memoryGiB": 0.5}, maxModelLen=8192
    )
    told = deployed.await_condition("Ready", "False", "KVCacheTooSmall")
    assert "GPU of" in told["message"]
    assert deployed.condition("MemoryFit")["reason"] == "KVCacheTooSmall"
    assert replicas_ever(deployed) == []


def test_two_replicas_on_a_shared_claim_fetch_once(
    pagemill: Cluster, namespace: str, hub: HubServer, tmp_path: Path
) -> None:
    shared_claim(pagemill, namespace, tmp_path)
    cache = {"existingClaim": "weights"}
    deployed = deploy(pagemill, namespace, "shared", model=REPO, replicas=2, modelCache=cache, pod=at(hub))
    deployed.await_condition("Ready", "True", seconds=LOAD)
    assert len(serving_pods(deployed)) == 2
    assert hub.fetched() == dict.fromkeys(hub.fetched(), 1)
    assert (tmp_path / "org" / f"tiny@{hub.commit}" / "model.safetensors").is_file()
    hub.answer = (503, b"")  # what is in the cache needs no hub
    deploy(pagemill, namespace, "shared", model=REPO, replicas=2, modelCache=cache, pod=at(hub), maxModelLen=256)
    deployed.await_condition("Ready", "True", seconds=LOAD)


def test_old_replicas_serve_while_a_new_model_fails(pagemill: Cluster, namespace: str, hub: HubServer) -> None:
    deployed = deploy(pagemill, namespace, "old", model=REPO, pod=at(hub))
    deployed.await_condition("Ready", "True", seconds=LOAD)
    (before,) = serving_pods(deployed)
    deploy(pagemill, namespace, "old", model="org/absent", pod=at(hub))
    deployed.await_condition("Degraded", "True", "ModelNotFound")
    (after,) = serving_pods(deployed)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    ready = [one["status"] for one in after["status"]["conditions"] if one["type"] == "Ready"]
    assert ready == ["True"]
    deploy(pagemill, namespace, "old", model=REPO, pod=at(hub))
    deployed.await_condition("Degraded", "False")
    (last,) = serving_pods(deployed)
    assert last["metadata"]["uid"] == before["metadata"]["uid"], "what was never left is not started anew"


def test_a_quota_that_leaves_no_room_is_told(pagemill: Cluster, namespace: str) -> None:
    pagemill.kubectl("create", "quota", "none", "-n", namespace, "--hard=pods=0")
    deployed = deploy(pagemill, namespace, "quota")
    told = deployed.await_condition("Ready", "False", "QuotaExceeded")
    assert "exceeded quota: none" in told["message"]


def certified(folder: Path, address: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context for this address, and the certificate, which signs itself."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=hub"),
            *("-addext", f"subjectAltName=IP:{address}"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


def shared_claim(cluster: Cluster, namespace: str, folder: Path) -> None:
    """A claim that is bound to a folder of this machine, which every pod's user may write."""
    folder.chmod(0o777)
    name = f"weights-{namespace}"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": str(folder)},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    cluster.apply(volume)
    cluster.apply(claim, namespace)
