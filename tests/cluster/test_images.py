"""What is in the two images, asked of the containers that run: the same wheel, each with its own part only."""

from __future__ import annotations

from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.images import Images
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR

pytestmark = pytest.mark.cluster

ASK = "import importlib.util as u; print(*[name for name in {names!r} if u.find_spec(name)])"
NAMES = ["pagemill", "pagemill_operator", "pagemill_server", "torch", "tokenizers", "kopf", "kubernetes", "pytest"]


def test_the_operators_image_has_no_engine(pagemill: Cluster) -> None:
    found = execute(pagemill, "python", "-c", ASK.format(names=NAMES)).split()
    assert found == ["pagemill", "pagemill_operator", "pagemill_server", "kopf", "kubernetes"]
    assert execute(pagemill, "id", "-u").strip() == "65532"


def test_the_servers_image_has_no_operator_and_brings_the_model(
    pagemill: Cluster, images: Images, namespace: str
) -> None:
    script = f'id -u; python -c "{ASK.format(names=NAMES)}"; ls -d $PAGEMILL_MODELS/*/*; pagemill --version'
    container: dict[str, Any] = {"name": "asked", "image": images.server, "command": ["sh", "-c", script]}
    container["securityContext"] = {"readOnlyRootFilesystem": True}
    spec = {"restartPolicy": "Never", "securityContext": {"runAsNonRoot": True}, "containers": [container]}
    pagemill.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": spec}, namespace)
    phase = ("get", "pod", "asked", "-n", namespace, "-o", "jsonpath={.status.phase}")
    eventually("its end", lambda: pagemill.kubectl(*phase) in ("Succeeded", "Failed") or None)
    user, modules, *models, version = pagemill.kubectl("logs", "asked", "-n", namespace).splitlines()
    assert user == "65532"
    assert modules.split() == ["pagemill", "pagemill_operator", "pagemill_server", "torch", "tokenizers"]
    assert models == ["/models/HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert version == execute(pagemill, "pagemill", "--version").strip()


def execute(cluster: Cluster, *command: str) -> str:
    return cluster.kubectl("exec", "-n", NAMESPACE, f"deploy/{OPERATOR}", "--", *command)
