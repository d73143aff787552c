"""`make demo-cluster`: Pagemill on a real Kubernetes, from `helm install` to a streamed answer, as a person sees it.

    python tests/cluster/demo_cluster.py [--keep]

--keep leaves the cluster running; `make cluster-down` ends it.
"""

from __future__ import annotations

import subprocess
import sys
import time

from testbed.cluster import Cluster, prepare, up
from testbed.deployments import Deployed
from testbed.errors import TestbedError
from testbed.images import REPOSITORY, ensure_images
from testbed.ready import eventually
from testbed.release import install

QUESTION = "What is the capital of France?"
EXAMPLE = "examples/smollm2.yaml"


def main(keep: bool) -> None:
    print(
        "A real Kubernetes on this machine (built once: about 10 minutes; images: about 6; then about 30 seconds in all).",
        flush=True,
    )
    images = ensure_images(prepare())
    cluster = up(images.all(), kept=keep)
    try:
        step("helm install pagemill charts/pagemill")
        install(cluster, images)
        print(cluster.kubectl("get", "pods", "--all-namespaces"))
        step(f"kubectl apply -f {EXAMPLE}")
        print(cluster.kubectl("apply", "-f", str(REPOSITORY / EXAMPLE)))
        deployed = Deployed(cluster, "default", "smollm2")
        follow(deployed)
        step("kubectl get llmdeployments,pods,services")
        print(cluster.kubectl("get", "llmdeployments,pods,services"))
        step(f"python examples/chat.py {deployed.address()}/v1 {QUESTION!r}")
        chat = [sys.executable, str(REPOSITORY / "examples" / "chat.py"), f"{deployed.address()}/v1", QUESTION]
        subprocess.run(chat, check=True)
        kill(cluster, deployed)
        if keep:
            print(f"\nexport KUBECONFIG={cluster.kubeconfig}   # until `make cluster-down`")
            return
        step("kubectl delete llmdeployment smollm2")
        print(cluster.kubectl("delete", "llmdeployment", "smollm2"))
    finally:
        if not keep:
            cluster.close()
    print("the cluster is gone")


def step(command: str) -> None:
    print(f"\n$ {command}", flush=True)


def follow(deployed: Deployed) -> None:
    """Print Ready each time that it says something new, until it is True."""
    started, last = time.monotonic(), ""

    def look() -> bool | None:
        nonlocal last
        ready = deployed.condition("Ready")
        said = f"Ready={ready.get('status')} {ready.get('reason')}: {ready.get('message')}"
        if ready and said != last:
            print(f"  {time.monotonic() - started:5.1f} s  {said}", flush=True)
            last = said
        return ready.get("status") == "True" or None

    eventually("Ready", look, seconds=180)


def kill(cluster: Cluster, deployed: Deployed) -> None:
    """Kill the server and watch the status tell."""
    step("kill -9 (the server's process)")
    (pod,) = deployed.pods()
    cluster.kill_container(pod["status"]["containerStatuses"][0]["containerID"])
    deployed.await_condition("Ready", "False", seconds=30)
    follow(deployed)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--keep"]):
        sys.exit(__doc__)
    try:
        main(keep="--keep" in sys.argv)
    except TestbedError as error:
        sys.exit(f"demo: {error}")
