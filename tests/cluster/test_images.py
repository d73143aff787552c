"""What is in the two images, asked of the containers that run: the same wheel, each with its own part only."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.images import Images
from testbed.layers import find_image
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR

from pagemill import __version__

pytestmark = pytest.mark.cluster

ASK = "import importlib.util as u; print(*[name for name in {names!r} if u.find_spec(name)])"
NAMES = ["pagemill", "pagemill_operator", "pagemill_server", "torch", "tokenizers", "kopf", "kubernetes", "pytest"]


TOOLS = ("gcc", "cc", "g++", "make", "ld", "cargo", "git")
LOOK = f"for tool in {' '.join(TOOLS)}; do command -v $tool; done; true"


def test_the_operators_image_has_no_engine(pagemill: Cluster) -> None:
    found = execute(pagemill, "python", "-c", ASK.format(names=NAMES)).split()
    assert found == ["pagemill", "pagemill_operator", "pagemill_server", "kopf", "kubernetes"]
    assert execute(pagemill, "id", "-u").strip() == "65532"
    assert execute(pagemill, "sh", "-c", LOOK) == ""


def test_the_servers_image_has_no_operator_and_brings_the_models(
    pagemill: Cluster, images: Images, namespace: str
) -> None:
    ask = f'id -u; python -c "{ASK.format(names=NAMES)}"; pagemill --version'
    user, modules, version = said_by(pagemill, images.server, namespace, "asked", ask).splitlines()
    assert user == "65532"
    assert modules.split() == ["pagemill", "pagemill_operator", "pagemill_server", "torch", "tokenizers"]
    assert version == execute(pagemill, "pagemill", "--version").strip()
    models = said_by(pagemill, images.server, namespace, "models", "cd $PAGEMILL_MODELS; ls -d */*").split()
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in models
    assert {"pagemill/tiny", "pagemill/tiny-embed"} <= set(models)


def test_the_servers_image_has_no_build_tools_and_writes_kernels_where_it_may(
    pagemill: Cluster, images: Images, namespace: str
) -> None:
    """The root is read-only, as in every pod of ours; without a GPU no kernel is compiled, so no compiler is there either."""
    assert said_by(pagemill, images.server, namespace, "tools", LOOK) == ""
    write = 'mkdir -p "$TRITON_CACHE_DIR" && touch "$TRITON_CACHE_DIR/kernel" && echo written'
    write += "; touch /var/tmp/anyone 2>/dev/null || echo refused"
    assert said_by(pagemill, images.server, namespace, "writes", write).split() == ["written", "refused"]


@pytest.mark.parametrize("kind", ["server", "operator"])
def test_an_image_says_what_it_is_and_runs_as_nobody(images: Images, kind: str) -> None:
    if os.environ.get("PAGEMILL_TEST_KUBECONFIG"):
        pytest.skip("only an image that was built here can be looked into")
    config = json.loads(find_image(getattr(images, kind)).configuration)["config"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert config["User"] == "65532:65532"
    assert kind in labels["title"]
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == __version__
    assert labels["revision"]


def said_by(cluster: Cluster, image: str, namespace: str, name: str, script: str) -> str:
    """What a script says in a container of the image, run as our pods are."""
    container: dict[str, Any] = {"name": "asked", "image": image, "command": ["sh", "-c", script]}
    container["securityContext"] = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
    spec = {"restartPolicy": "Never", "securityContext": {"runAsNonRoot": True}, "containers": [container]}
    spec["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, namespace)
    phase = ("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")
    eventually("its end", lambda: cluster.kubectl(*phase) in ("Succeeded", "Failed") or None)
    return cluster.kubectl("logs", name, "-n", namespace)


def execute(cluster: Cluster, *command: str) -> str:
    return cluster.kubectl("exec", "-n", NAMESPACE, f"deploy/{OPERATOR}", "--", *command)
