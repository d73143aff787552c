"""Replicas that take their time: each step of the engine takes a least time, which a test may change while a replica runs.

What must outlast something then does on any machine, however fast its engine is, and ends quickly once it has: a test lets it run.
By code that Python runs first in the server's container, out of a ConfigMap. Called by test_lossless, test_sleep and test_argocd.
"""

from __future__ import annotations

from typing import Any

from testbed.cluster import Cluster

NAME = "pace"  # of the ConfigMap and its volume
FOLDER = "/pace"
WORD = "/tmp/pace"  # in the container: what a test has told it since
SECONDS = "PAGEMILL_TESTS_STEP_SECONDS"
# A preflight runs the same Python, but another word.
CODE = f"""
import sys
if 'serve' in sys.orig_argv:
    import os, time
    from pagemill_server.engine.engine import Engine
    step = Engine.step
    def least():
        try:
            with open({WORD!r}) as told:
                return float(told.read().strip() or 0)
        except FileNotFoundError:
            return float(os.environ[{SECONDS!r}])
    def paced(self):
        ready = time.monotonic() + least()
        outputs = step(self)
        time.sleep(max(0.0, ready - time.monotonic()))
        return outputs
    Engine.step = paced
"""


def config_map(namespace: str) -> dict[str, Any]:
    """Whoever is to be paced there needs this first."""
    metadata = {"name": NAME, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"sitecustomize.py": CODE}}


def paced(seconds: float, *env: dict[str, str]) -> dict[str, Any]:
    """`spec.pod` of replicas whose steps take so long at least."""
    return {
        "env": [{"name": "PYTHONPATH", "value": FOLDER}, {"name": SECONDS, "value": str(seconds)}, *env],
        "volumes": [{"name": NAME, "configMap": {"name": NAME}}],
        "volumeMounts": [{"name": NAME, "mountPath": FOLDER}],
    }


def set_pace(cluster: Cluster, pod: dict[str, Any], seconds: float) -> None:
    """From now on, of that one; 0 lets it run."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    cluster.kubectl("exec", name, "-n", namespace, "--", "sh", "-c", f"echo {seconds} > {WORD}")
