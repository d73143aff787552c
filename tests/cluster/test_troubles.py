"""What goes wrong is its own reason in status, with words to act on, and never Ready."""

from __future__ import annotations

from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import deploy
from testbed.images import Images

pytestmark = pytest.mark.cluster

# name: (spec, reason, what the message must say, the condition besides Ready that says it, if any)
TROUBLES: dict[str, tuple[dict[str, Any], str, str, str | None]] = {
    "image": ({"image": "localhost/nothing:1"}, "ImagePullFailure", "localhost/nothing:1", None),
    "node": ({"resources": {"requests": {"memory": "900Gi"}}}, "Unschedulable", "memory", None),
    "model": ({"model": "file:///models/nobody/nothing"}, "ModelNotFound", "/models/nobody/nothing", "ModelAvailable"),
    "memory": (
        {"maxModelLen": 8192, "engine": {"kvCacheGiB": 0.05}},
        "KVCacheTooSmall",
        "set maxModelLen to 1152",  # the largest that fits
        "MemoryFit",
    ),
    "claim": ({"modelCache": {"size": "1Gi"}}, "ClaimPending", "claim-models", None),
    "secret": (
        {"hfTokenSecretRef": {"name": "absent", "key": "token"}},
        "ContainerConfigError",
        "absent",
        None,
    ),
    "flag": ({"engine": {"extraArgs": ["--no-such-flag"]}}, "InvalidConfiguration", "--no-such-flag", None),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_is_told(name: str, pagemill: Cluster, namespace: str) -> None:
    spec, reason, says, besides = TROUBLES[name]
    deployed = deploy(pagemill, namespace, name, **spec)
    told = deployed.await_condition("Ready", "False", reason)
    assert says in told["message"]
    assert deployed.condition("Degraded")["status"] == "True"
    assert deployed.get()["status"]["ready"] == "0/1"
    if besides:
        assert deployed.condition(besides)["status"] == "False"
        assert deployed.condition(besides)["reason"] == reason


def test_a_crash_loop_is_told_with_how_it_ended(pagemill: Cluster, namespace: str) -> None:
    """A torch that ends its process: the preflight, which needs none, passes, and the server leaves no line."""
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "torch"}}
    pagemill.apply({**code, "data": {"torch.py": "import os; os._exit(7)"}}, namespace)
    shadow = {
        "env": [{"name": "PYTHONPATH", "value": "/shadow"}],
        "volumes": [{"name": "shadow", "configMap": {"name": "torch"}}],
        "volumeMounts": [{"name": "shadow", "mountPath": "/shadow"}],
    }
    deployed = deploy(pagemill, namespace, "crash", pod=shadow)
    told = deployed.await_condition("Ready", "False", "CrashLoopBackOff")
    assert "restarts" in told["message"]
    assert "0 of 1 replicas answer" in told["message"]


def test_an_image_without_a_preflight_is_told(pagemill: Cluster, images: Images, namespace: str) -> None:
    """The pause image holds one static program, and no `pagemill`."""
    deployed = deploy(pagemill, namespace, "stranger", image=images.pause, imagePullPolicy="Never")
    deployed.await_condition("Ready", "False", "PreflightFailed", "ContainerConfigError")


def test_mending_the_spec_ends_the_trouble(pagemill: Cluster, namespace: str) -> None:
    deployed = deploy(pagemill, namespace, "mended", maxModelLen=8192, engine={"kvCacheGiB": 0.05})
    deployed.await_condition("Ready", "False", "KVCacheTooSmall")
    deploy(pagemill, namespace, "mended", maxModelLen=256, engine={"kvCacheGiB": 0.05})
    deployed.await_condition("Ready", "True")
    assert deployed.condition("Degraded")["status"] == "False"
