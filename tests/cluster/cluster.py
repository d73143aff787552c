"""The real Kubernetes of the tests, by hand: `make cluster` and `make cluster-down`.

python tests/cluster/cluster.py up         start a cluster with Pagemill's images and operator, and leave it running
python tests/cluster/cluster.py down       end every cluster that was left running
python tests/cluster/cluster.py build      build the programs and images, start nothing
python tests/cluster/cluster.py ahead      and what single tests want beside them: whatever a test would have to wait for
python tests/cluster/cluster.py packages   install the system packages that are missing
"""

from __future__ import annotations

import sys
import time

from testbed.binaries import EXTRAS
from testbed.binaries import build as build_programs
from testbed.cluster import prepare, up
from testbed.errors import TestbedError
from testbed.images import ensure_images
from testbed.packages import ensure_packages, require_root
from testbed.release import install
from testbed.run import discard, existing_runs, recorded, sweep


def start() -> None:
    started = time.monotonic()
    images = ensure_images(prepare())
    cluster = up(images.all(), kept=True)
    install(cluster, images)
    print(f"ready after {time.monotonic() - started:.0f} s; it runs until `make cluster-down`")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"{cluster.kubectl_program} apply -f examples/smollm2.yaml")


def stop() -> None:
    sweep()
    kept = [run for run in existing_runs() if recorded(run).get("kept")]
    for run in kept:
        discard(run)
        print(f"ended cluster {run.number}")
    if not kept:
        print("no cluster was left running")


def build() -> None:
    print(ensure_images(prepare()))


def ahead() -> None:
    build()
    for module in dict.fromkeys(program.module for program in EXTRAS):
        build_programs(module)


def packages() -> None:
    require_root()
    ensure_packages()


COMMANDS = {"up": start, "down": stop, "build": build, "ahead": ahead, "packages": packages}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    try:
        COMMANDS[sys.argv[1]]()
    except TestbedError as error:
        sys.exit(f"cluster: {error}")
