"""The operator as it is deployed, as a process whose memory and processor time are looked at from outside.

Runs in the cluster's own network namespace, as the account that the chart makes, so with its rights and no more. Called by
`operator_scale` and tests/cluster/test_scale.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster import Cluster
from testbed.ready import eventually
from testbed.release import CHART, NAMESPACE, OPERATOR, RELEASE
from testbed.sandbox import Sandbox

ROOT = Path(__file__).resolve().parent.parent
USER = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"  # as the audit log names it
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process, since its start."""

    cpu_seconds: float
    memory_mib: float  # resident now
    peak_mib: float


class Operator:
    """One process, started by `start`; it may be ended and started again."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.node is not None
        self._sandbox: Sandbox = cluster.node.sandbox
        self._kubeconfig = _account(cluster)
        self._starts = 0
        self._pid = 0

    def start(self, seconds: float = 120) -> None:
        """Return when it says that it serves."""
        self._starts += 1
        name = f"operator-{self._starts}"
        paths = os.pathsep.join(str(ROOT / part) for part in (".", "operator"))
        environment = (f"KUBECONFIG={self._kubeconfig}", f"PYTHONPATH={paths}", "PAGEMILL_PREFLIGHT=false")
        command = (sys.executable, "-m", "pagemill_operator", "-A")
        process = self._sandbox.start(name, "env", *environment, *command)
        self._pid = eventually("the operator's process", lambda: _child(process), seconds=60)
        log = self._sandbox.run.logs / f"{name}.log"
        eventually(f"a line in {log}", lambda: "serves all namespaces" in log.read_text() or None, seconds)

    def stop(self, with_signal: int = signal.SIGTERM, seconds: float = 60) -> None:
        """End it, and wait until it has."""
        end(self._sandbox.processes.pop(f"operator-{self._starts}"), with_signal, seconds)

    def usage(self) -> Usage:
        """What it has used."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{self._pid}/status").read_text().splitlines() if ":" in line
        )
        now, peak = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return Usage((int(fields[11]) + int(fields[12])) / _TICKS, now, peak)

    def until_idle(self, share: float = 0.05, seconds: float = 600) -> float:
        """Wait until it uses less than `share` of a core over three seconds; the seconds that it took to get there."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            before = self.usage().cpu_seconds
            time.sleep(3)
            if self.usage().cpu_seconds - before < 3 * share:
                return time.monotonic() - started - 3
        return time.monotonic() - started


def end(process: subprocess.Popen[bytes], with_signal: int = signal.SIGTERM, seconds: float = 60) -> None:
    """End what `Sandbox.start` started, and wait until it has; nsenter passes no signal on."""
    if (pid := _child(process)) is not None:
        os.kill(pid, with_signal)
    process.wait(seconds)


def _account(cluster: Cluster) -> Path:
    """Install the chart (its own pod is one of kwok's, which runs nothing), and be its ServiceAccount."""
    assert cluster.run is not None
    cluster.helm("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    token = cluster.kubectl("create", "token", OPERATOR, "--namespace", NAMESPACE, "--duration", "24h").strip()
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    file = cluster.run.folder / "operator.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    return file


def _child(process: subprocess.Popen[bytes]) -> int | None:
    """nsenter forks to get into the PID namespace; `env` then becomes the operator."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else None
