"""One run of a cluster on this machine: its number, folders, addresses and the record of its processes.

Everything that two runs could collide over derives from the number. The record is written before
anything is started, so that `sweep` can clear away a run whose maker was killed; processes are known by
pid and start time, so that a pid used again is never killed. Knows nothing of Kubernetes.
Called by sandbox and cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.cache import cluster_cache, exclusive
from testbed.errors import TestbedError

HIGHEST = 60  # runs at once; each has a third octet of its own in the addresses below
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Run:
    """The folders and addresses of one run."""

    number: int

    @property
    def folder(self) -> Path:
        """Data, logs and the record. On the cache's own file system, so that images can be hard links."""
        return runs_folder() / str(self.number)

    @property
    def sockets(self) -> Path:
        """Sockets, in a short path: they can't be longer than 107 characters."""
        return Path("/run/pagemill-testbed") / str(self.number)

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.folder / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def link(self) -> str:
        """The host's end of the cable to the cluster's network namespace."""
        return f"pagemill{self.number}"

    @property
    def host_address(self) -> str:
        """This machine, as the cluster sees it."""
        return f"10.233.{self.number}.1"

    @property
    def node_address(self) -> str:
        """The node and the API server."""
        return f"10.233.{self.number}.2"

    @property
    def pod_range(self) -> str:
        """CIDR of the pods."""
        return f"10.231.{self.number}.0/24"

    @property
    def service_range(self) -> str:
        """CIDR of the ClusterIPs; reachable from this machine."""
        return f"10.232.{self.number}.0/24"

    @property
    def api_service(self) -> tuple[str, int]:
        """The API server's ClusterIP and port: always the range's first."""
        return f"10.232.{self.number}.1", 443

    @property
    def containers(self) -> Path:
        """One folder a container, named by its id, while containerd has it."""
        return self.sockets / "containerd" / "io.containerd.runtime.v2.task" / "k8s.io"


def runs_folder() -> Path:
    """Where the runs' folders are."""
    return cluster_cache() / "runs"


def claim(kept: bool) -> Run:
    """A run with a number that no living run has. `kept` outlives the process that claims it."""
    with exclusive("runs"):
        _sweep()
        taken = {run.number for run in existing_runs()}
        free = next((number for number in range(1, HIGHEST) if number not in taken), None)
        if free is None:
            raise TestbedError(f"{HIGHEST - 1} clusters run already: python tests/cluster/cluster.py down")
        run = Run(free)
        run.logs.mkdir(parents=True)
        run.sockets.mkdir(parents=True, exist_ok=True)
        record(run, kept=kept, owner=identify(os.getpid()))
        return run


def existing_runs() -> list[Run]:
    """Every run that has a folder, living or not."""
    folders = runs_folder().glob("*") if runs_folder().exists() else []
    return [Run(int(folder.name)) for folder in folders if folder.name.isdigit()]


def record(run: Run, **entries: object) -> None:
    """Add entries to the run's record, whole or not at all."""
    new = run.folder / "record.json.new"
    new.write_text(json.dumps(recorded(run) | entries))
    new.rename(run.folder / "record.json")


def recorded(run: Run) -> dict[str, object]:
    """The run's record; empty when there is none."""
    try:
        found: dict[str, object] = json.loads((run.folder / "record.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def identify(pid: int) -> list[int]:
    """[pid, start time in clock ticks since boot]: a process that no later one can be taken for."""
    # The command's name, in brackets, may hold spaces; the start time is the 20th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":  # ended, and only waits for its parent to ask how
        raise ProcessLookupError(pid)
    return [pid, int(fields[19])]


def is_alive(identity: object) -> bool:
    """Whether the process that `identify` described still runs."""
    if not isinstance(identity, list):
        return False
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return identify(identity[0]) == identity
    return False


def is_living(run: Run) -> bool:
    """A kept run lives while its sandbox does; any other only while its owner does as well."""
    entries = recorded(run)
    if entries.get("kept"):
        return is_alive(entries.get("sandbox")) or is_alive(entries.get("owner"))
    return is_alive(entries.get("owner"))


def sweep() -> None:
    """Clear away every run whose maker is gone."""
    with exclusive("runs"):
        _sweep()


def _sweep() -> None:
    for run in existing_runs():
        if not is_living(run):
            discard(run)


def discard(run: Run) -> None:
    """End all of a run's processes and remove what it left.

    The sandbox's first process takes every other one of its PID namespace along, and the mounts,
    interfaces and nftables tables go with their namespaces: nothing has to be undone one by one. Only the
    interface on this side is taken away by name, since the kernel ends a namespace when it gets to it and the
    next run may have this one's number before that.
    """
    sandbox = recorded(run).get("sandbox")
    if isinstance(sandbox, list) and is_alive(sandbox):
        os.kill(sandbox[0], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while is_alive(sandbox) and time.monotonic() < deadline:
        time.sleep(0.02)
    subprocess.run(["ip", "link", "delete", run.link], check=False, capture_output=True)
    _remove_cgroups(run)
    shutil.rmtree(run.sockets, ignore_errors=True)
    # Volumes of pods were mounts in the sandbox's namespace only; here they are empty folders.
    shutil.rmtree(run.folder, ignore_errors=True)


def _remove_cgroups(run: Run) -> None:
    """The cgroups of containers that were killed with the sandbox; runc removes those of all others.

    All runs' are in the same folder, so only this run's own are touched.
    """
    containers = [folder.name for folder in run.containers.glob("*")]
    hierarchies = [CGROUPS / "k8s.io", *CGROUPS.glob("*/k8s.io")]  # version 2 has one, version 1 one a controller
    for cgroup in (parent / name for parent in hierarchies for name in containers):
        with contextlib.suppress(OSError):
            cgroup.rmdir()
