"""From `kubectl apply` to Ready, split at what the API server's audit log, the kernel and the pod say. Run by `start --cluster`.

On the tests' own cluster, whose containerd has unpacked the images: pulling is not part of it. Needs root.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.machine import Machine
from benchmarks.scale_audit import Write, read

APPLIED, JOB, DEPLOYMENT, BOUND, STARTED, POD_READY, READY = STEPS = (
    "kubectl apply",
    "the preflight's Job is written",
    "the Deployment is written: the preflight is done",
    "the pod has a node",
    "the container's first process starts",
    "the pod is Ready (whole seconds)",
    "the LLMDeployment says Ready",
)


def moments(writes: Sequence[Write], name: str, started: float, pod_ready: float, seen: float) -> dict[str, float]:
    """Unix seconds of each step; `started` and `pod_ready` are the pod's, `seen` is when Ready was first read. Steps that the log
    does not have are left out. Raises LookupError where it has no apply."""
    done = [write for write in writes if 200 <= write.code < 300 and write.at <= seen]
    found: dict[str, float] = {}

    def first(step: str, resource: str, prefix: str, after: float) -> float:
        times = [w.at for w in done if w.resource == resource and w.name[1].startswith(prefix) and w.at >= after]
        if times:
            found[step] = min(times)
        return found.get(step, after)

    first(APPLIED, "llmdeployments", name, 0.0)
    if APPLIED not in found:
        raise LookupError(f"the audit log has no write of llmdeployments/{name}")
    first(JOB, "jobs", name, found[APPLIED])
    deployed = first(DEPLOYMENT, "deployments", name, found[APPLIED])
    first(BOUND, "pods/binding", name, deployed)
    found |= {STARTED: started, POD_READY: pod_ready}
    spoken = [w.at for w in done if w.resource == "llmdeployments/status" and w.name[1] == name]
    found[READY] = max(spoken, default=seen)
    return {step: found[step] for step in STEPS if step in found}


def gaps(found: dict[str, float]) -> dict[str, float]:
    """Seconds from each step to the one before; the first is left out."""
    steps = list(found)
    return {step: found[step] - found[before] for before, step in pairwise(steps)}


def run(reps: int, out: Path | None, here: Machine) -> int:
    """Bring a cluster up, start so many, print and write; 1 where the cluster fails."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "cluster"))
    from testbed import images as built
    from testbed.cluster import prepare, up
    from testbed.errors import TestbedError
    from testbed.release import install

    try:
        images = built.ensure_images(prepare())
        cluster = up(images.all(), kept=False)
        try:
            install(cluster, images)
            figures = [_start(cluster, f"start-{number}") for number in range(reps)]
        finally:
            cluster.close()
    except TestbedError as error:
        sys.stderr.write(f"benchmarks.start: {error}\n")
        return 1
    print(table(figures))
    if out:
        record.write(out, here, {"starts": figures})
    return 0


def table(figures: Sequence[dict[str, float]]) -> str:
    """Medians of the gaps, and of all of it."""
    splits = [gaps(found) for found in figures]
    rows = []
    for step in STEPS[1:]:
        if seconds := [split[step] for split in splits if step in split]:
            rows.append([step, f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"])
    whole = [found[READY] - found[APPLIED] for found in figures]
    rows.append(
        ["**from kubectl apply to Ready**", f"{statistics.median(whole):.2f} ({min(whole):.2f}-{max(whole):.2f})"]
    )
    return record.table(["until", "seconds since the step before (least-most)"], rows)


def _start(cluster: Any, name: str) -> dict[str, float]:
    """One LLMDeployment, applied, waited for, deleted."""
    from testbed.deployments import Deployed, manifest

    cluster.apply(manifest(name))
    deployed = Deployed(cluster, "default", name)
    deployed.await_condition("Ready", "True", seconds=600)
    seen = time.time()
    (pod,) = deployed.pods()
    ready = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")["lastTransitionTime"]
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = cluster.process_start(pod["status"]["containerStatuses"][0]["containerID"]) + boot
    time.sleep(1)  # the audit log is written a little later
    found = moments(
        read(cluster.node.control_plane.audit_log), name, started, datetime.fromisoformat(ready).timestamp(), seen
    )
    cluster.kubectl("delete", "llmdeployment", name, "--wait=true")
    return found
