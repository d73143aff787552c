"""What the images weigh, and how soon their containers do their work.

    python -m benchmarks.image_starts --out benchmarks/results/image-starts.json
    python -m benchmarks.image_starts --gpu-size       only builds the GPU server and weighs it (several GB)

On the tests' own cluster, whose containerd unpacks the images before: pulling is not part of a figure. From the start of a
container's first process (the kernel's stamp) to the first 200 on /health and on /ready, by model; for the operator to its
first write for an LLMDeployment that waited. Needs root.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine, record, scale_audit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "cluster"))

from testbed import images as built
from testbed.cluster import Cluster, prepare, up
from testbed.deployments import manifest
from testbed.errors import TestbedError
from testbed.layers import find_image, sizes
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR, install

PORT = 8000
MODELS = ("pagemill/tiny", *built.MODELS)  # that the image brings
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"


def main() -> int:
    """One run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image_starts", description=__doc__)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument(
        "--gpu-size", action="store_true", help="build the GPU server's image and weigh it; start nothing"
    )
    parser.add_argument("--out", type=Path, help="write every figure to this file as JSON")
    options = parser.parse_args()
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        figures = weigh_gpu() if options.gpu_size else measure(options.reps)
    except TestbedError as error:
        sys.stderr.write(f"image_starts: {error}\n")
        return 1
    print(table(figures))
    if options.out:
        record.write(options.out, here, figures)
    return 0


def weigh_gpu() -> dict[str, Any]:
    """The size of the server with the CUDA build of torch and a C compiler."""
    return {"sizes": {"server, GPU": weigh(built.ensure_gpu_image(prepare()))}, "starts": {}}


def measure(reps: int) -> dict[str, Any]:
    """Sizes, then starts on one cluster."""
    images = built.ensure_images(prepare())
    weights = {"operator": weigh(images.operator), "server, CPU": weigh(images.server)}
    cluster = up(images.all(), kept=False)
    try:
        starts = {}
        for model in MODELS:
            timed = [start_server(cluster, images.server, model, number) for number in range(reps)]
            starts[f"server, {model}, to /health"] = [health for health, _ in timed]
            starts[f"server, {model}, to /ready"] = [ready for _, ready in timed]
        install(cluster, images)
        starts["operator, to its first write"] = [start_operator(cluster, number) for number in range(reps)]
    finally:
        cluster.close()
    return {"sizes": weights, "starts": starts}


def weigh(image: str) -> dict[str, Any]:
    """MiB on a node's disk, a layer each with the line of the Dockerfile that made it."""
    stored = find_image(image)
    history = [step for step in json.loads(stored.configuration)["history"] if not step.get("empty_layer")]
    made = [" ".join(step.get("created_by", "").split())[:100] for step in history]
    layers = [size / 1024**2 for size in sizes(stored)]
    named = [{"mib": round(mib, 1), "by": by} for mib, by in zip(layers, made, strict=True)]
    return {"image": image, "mib": round(sum(layers), 1), "layers": named}


def start_server(cluster: Cluster, image: str, model: str, number: int) -> tuple[float, float]:
    """Seconds from its start to /health and to /ready."""
    assert cluster.run is not None
    name = f"start-{number}-{model.rpartition('/')[2].lower()}"
    container: dict[str, Any] = {
        "name": "server",
        "image": image,
        "args": [
            model,
            "--device",
            "cpu",
            "--host",
            "0.0.0.0",
            "--port",
            str(PORT),
            "--kv-cache-memory-bytes",
            "100MiB",
        ],
        "securityContext": {"readOnlyRootFilesystem": True, "runAsNonRoot": True, "allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    # On the node's own address, which is known before the kubelet has said a pod's.
    spec = {"hostNetwork": True, "volumes": [{"name": "tmp", "emptyDir": {}}], "containers": [container]}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    try:
        health = answers_at(cluster.run.node_address, "/health")
        ready = answers_at(cluster.run.node_address, "/ready")
        began = process_start(cluster, "default", name)
    finally:
        cluster.kubectl("delete", "pod", name, "--grace-period=5")
    return health - began, ready - began


def answers_at(address: str, path: str, seconds: float = 600) -> float:
    """When it first answers 200, in seconds since boot."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(address, PORT, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return since_boot()
        except OSError:
            pass  # nobody listens yet
        finally:
            connection.close()
        time.sleep(0.01)
    raise TestbedError(f"http://{address}:{PORT}{path} did not answer within {seconds:.0f} s")


def process_start(cluster: Cluster, namespace: str, pod: str) -> float:
    """When the container's first process began, in seconds since boot."""
    assert cluster.node is not None
    path = "jsonpath={.status.containerStatuses[0].containerID}"
    container = eventually(
        f"{pod}'s container", lambda: cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", path) or None
    )
    return cluster.process_start(container)


def since_boot() -> float:
    """The clock of the kernel's stamps on processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_operator(cluster: Cluster, number: int) -> float:
    """Seconds from its start to the first write for an LLMDeployment that waited for it."""
    deployment = f"deployment/{OPERATOR}"
    selector = ("-n", NAMESPACE, "-l", "app.kubernetes.io/name=pagemill-operator")
    cluster.kubectl("scale", deployment, "-n", NAMESPACE, "--replicas=0")
    eventually("the operator's end", lambda: not cluster.get("pods", *selector)["items"] or None)
    name = f"waits-{number}"
    cluster.apply(manifest(name))
    cluster.kubectl("scale", deployment, "-n", NAMESPACE, "--replicas=1")
    assert cluster.node is not None
    log = cluster.node.control_plane.audit_log

    def first() -> float | None:
        writes = scale_audit.by(ACCOUNT, scale_audit.read(log))
        return next((write.at for write in writes if write.name == ("default", name)), None)

    written = eventually("its first write", first, seconds=300)
    pod = cluster.get("pods", *selector)["items"][0]["metadata"]["name"]
    began = process_start(cluster, NAMESPACE, pod) + time.time() - since_boot()
    cluster.kubectl("delete", "llmdeployment", name)
    return written - began


def table(figures: dict[str, Any]) -> str:
    """For people and for docs/images.md."""
    rows = [[name, f"{found['mib']:.0f} MiB"] for name, found in figures["sizes"].items()]
    for name, found in figures["starts"].items():
        rows.append([name, f"{statistics.median(found):.2f} s ({min(found):.2f}-{max(found):.2f})"])
    return record.table(["image", "size, or median (least-most)"], rows)


if __name__ == "__main__":
    sys.exit(main())
