"""Starts that go wrong, and slow ones that don't: told with their reason, and ended only when nothing moves any more."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import deploy
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

TINY = "pagemill/tiny"
FOLDER = "/startup"
# A preflight runs the same Python with the server's flags, but another word.
NEVER = "import time, sys\nif 'serve' in sys.orig_argv: time.sleep(100000)\n"
# Each step of the load takes its time, as a slow disk would have it.
SLOWLY = """
import time, sys
if 'serve' in sys.orig_argv:
    from pagemill_server.lifecycle import Lifecycle
    move = Lifecycle.progress
    def progress(self, done, total):
        time.sleep({seconds} if done else 0)
        move(self, done, total)
    Lifecycle.progress = progress
"""


def at_start(cluster: Cluster, namespace: str, code: str) -> dict[str, Any]:
    """`spec.pod` by which the server's Python runs `code` first."""
    data = {"sitecustomize.py": code}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "startup"}, "data": data}, namespace)
    return {
        "env": [{"name": "PYTHONPATH", "value": FOLDER}],
        "volumes": [{"name": "startup", "configMap": {"name": "startup"}}],
        "volumeMounts": [{"name": "startup", "mountPath": FOLDER}],
    }


def test_out_of_memory_names_the_limit(pagemill: Cluster, namespace: str) -> None:
    """kserve#2260."""
    eats = "import sys\nif 'serve' in sys.orig_argv: x = b'x' * (300 << 20)\n"
    pod = at_start(pagemill, namespace, eats)
    deployed = deploy(pagemill, namespace, "eats", model=TINY, pod=pod, resources={"limits": {"memory": "200Mi"}})
    told = deployed.await_condition("Ready", "False", "OOMKilled")
    assert "its limit of 200Mi" in told["message"]
    assert deployed.condition("MemoryFit")["reason"] == "OOMKilled"


def test_a_startup_that_never_answers_spends_the_probes_budget(pagemill: Cluster, namespace: str) -> None:
    pod = at_start(pagemill, namespace, NEVER)
    deployed = deploy(pagemill, namespace, "hangs", model=TINY, pod=pod, startup={"timeoutSeconds": 6})
    told = deployed.await_condition("Ready", "False", "ProbeFailed")
    assert "did not answer /health within 6 s" in told["message"]
    assert "connection refused" in told["message"]
    assert deployed.condition("Progressing")["status"] == "True", (
        "it is started again: this may have been the only time"
    )
    deployed.await_condition("Progressing", "False", "ProbeFailed", seconds=600)


def test_a_slow_load_is_never_killed_while_it_moves(pagemill: Cluster, namespace: str) -> None:
    """kserve#5062, aibrix#782: it takes far longer than startup.timeoutSeconds, and is shown to get on."""
    pod = at_start(pagemill, namespace, SLOWLY.format(seconds=2.5))
    deployed = deploy(pagemill, namespace, "slow", model=TINY, pod=pod, startup={"timeoutSeconds": 30})
    seen: set[tuple[str, int]] = set()

    def ready() -> bool | None:
        loading = deployed.get().get("status", {}).get("loading")
        if loading:
            seen.add((loading["phase"], loading["percent"]))
        return deployed.condition("Ready").get("status") == "True" or None

    eventually("the slow load", ready, seconds=600)
    (pod_now,) = deployed.pods()
    container = pod_now["status"]["containerStatuses"][0]
    assert container["restartCount"] == 0
    began = datetime.fromisoformat(container["state"]["running"]["startedAt"])
    took = datetime.fromisoformat(deployed.condition("Ready")["lastTransitionTime"]) - began
    assert took.total_seconds() > 40, "longer than it may stand still, or this shows nothing"
    assert any(phase == "LoadingWeights" and 0 < percent < 100 for phase, percent in seen), seen
    selector = "involvedObject.kind=LLMDeployment,involvedObject.name=slow,type=Warning"
    assert pagemill.get("events", "-n", namespace, "--field-selector", selector)["items"] == []


def test_a_load_that_stops_moving_ends_with_its_reason(pagemill: Cluster, namespace: str) -> None:
    pod = at_start(pagemill, namespace, SLOWLY.format(seconds=10000))
    deployed = deploy(pagemill, namespace, "stalls", model=TINY, pod=pod, startup={"timeoutSeconds": 45})
    told = deployed.await_condition("Ready", "False", "LoadStalled", seconds=600)
    assert "--startup-timeout" in told["message"]
