"""A GPU deployment gets a GPU, as far as Kubernetes goes: it is asked for, counted, and told when there is none.

The node advertises GPUs as a device plugin would have it do. No GPU is there, so the server ends with its own word.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.deployments import MODEL, Deployed, deploy
from testbed.images import REPOSITORY
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def with_gpus(pagemill: Cluster) -> Cluster:
    pagemill.advertise_gpus(4)
    return pagemill


def scheduled(deployed: Deployed) -> dict[str, Any] | None:
    """A replica that has a node and stays; the preflight's pod is none."""
    return next((pod for pod in deployed.staying() if pod["spec"].get("nodeName")), None)


def test_the_example_asks_for_a_gpu_and_is_scheduled(with_gpus: Cluster, namespace: str) -> None:
    with_gpus.kubectl("create", "secret", "generic", "hf-token", "-n", namespace, "--from-literal=token=none")
    example = yaml.safe_load((REPOSITORY / "examples" / "llama2-gpu.yaml").read_text())
    example["spec"]["model"] = "pagemill/tiny"  # its own is at a hub, and a preflight would look for it first
    with_gpus.apply(example, namespace)
    pod = eventually("a scheduled pod", lambda: scheduled(Deployed(with_gpus, namespace, "llama-2-7b-chat")))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {GPU: "1"}
    assert ["--device", "cuda"] in pairs(pod["spec"]["containers"][0]["args"])


def test_a_rollout_takes_the_device_of_the_replica_that_it_replaces(with_gpus: Cluster, namespace: str) -> None:
    """LLMKube#192, airunway#400: the only device is in use. (It serves on CPU and takes the device as a GPU server would.)"""
    device = "example.com/accelerator"
    with_gpus.advertise_gpus(1, resource=device)
    limits = {device: "1"}
    only = deploy(with_gpus, namespace, "only", model="pagemill/tiny", resources={"limits": limits})
    only.await_condition("Ready", "True")
    first = scheduled(only)
    deploy(with_gpus, namespace, "only", model="pagemill/tiny", resources={"limits": limits}, maxModelLen=256)
    only.await_condition("Ready", "True", seconds=600)
    second = scheduled(only)
    assert first is not None
    assert second is not None
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert second["spec"]["containers"][0]["resources"]["limits"][device] == "1"


def test_a_server_that_can_not_use_a_gpu_says_so_in_status(with_gpus: Cluster, namespace: str) -> None:
    deployed = deploy(with_gpus, namespace, "no-cuda", model=MODEL, accelerator="gpu", engine={})
    told = deployed.await_condition("Ready", "False", "InvalidConfiguration")
    assert "there is no GPU that can be used here" in told["message"]
    assert "0 of 1 replicas answer" in told["message"]


def test_a_gpu_that_no_node_has_is_unschedulable(with_gpus: Cluster, namespace: str) -> None:
    slice_of_one = "nvidia.com/mig-1g.10gb"
    deployed = deploy(with_gpus, namespace, "many", accelerator="gpu", gpu={"resourceName": slice_of_one}, engine={})
    told = deployed.await_condition("Ready", "False", "Unschedulable")
    assert slice_of_one in told["message"]


def pairs(arguments: list[str]) -> list[list[str]]:
    return [list(pair) for pair in itertools.pairwise(arguments)]
