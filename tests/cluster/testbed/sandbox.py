"""The namespaces that a whole cluster runs in: PID, mount and network, so that it can't leak.

Its first process holds them; when that is killed the kernel ends every process, mount and interface
inside, kube-proxy's tables included. A veth pair joins it to this machine, with routes to its pods and
ClusterIPs. Knows nothing of what runs inside. Called by cluster, control_plane and node.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import NotReady
from testbed.run import Run, identify, record

# Folders that programs inside write to wherever they are told to work: each gets one that goes with the sandbox.
PRIVATE = ("/run/containerd", "/run/netns", "/var/lib/cni", "/var/log/containers")
# What the kubelet insists on. It finds these values inside, and so leaves this machine's own alone.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
PREPARE = """
set -e
mount --make-rshared /
for folder in {private}; do mount -t tmpfs tmpfs $folder; done
for setting in {settings}; do
  file=/run/containerd/$(echo ${{setting%=*}} | tr / .)
  echo ${{setting#*=}} > $file
  mount --bind $file /proc/sys/${{setting%=*}}
done
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
exec {hold}
"""


@dataclass(frozen=True)
class Sandbox:
    """A sandbox that runs; `pid` is its first process as this machine sees it."""

    run: Run
    pid: int
    path: str  # PATH for what runs inside
    processes: dict[str, subprocess.Popen[bytes]]  # by log name; to be waited for when the sandbox has ended
    tied: tuple[str, ...] = ()  # what ties a process to this one's life

    def enter(self, *command: str, network_only: bool = False) -> list[str]:
        """The command line that runs `command` inside."""
        namespaces = ["--net"] if network_only else ["--mount", "--pid", "--net"]
        return ["nsenter", "--target", str(self.pid), *namespaces, "--", *command]

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Run a process inside that lives as long as the sandbox; its output goes to logs/NAME.log."""
        with (self.run.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                # nsenter is outside: it is not killed with the sandbox, and one whose program was frozen would stay, stopped.
                [*self.tied, *self.enter(*command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PATH": self.path},
                start_new_session=True,  # a Ctrl-C at the terminal is the caller's to handle
            )
        self.processes[name] = process
        return process

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that `start` has started. After SIGKILL it has ended, and may be started again."""
        process = self.processes[name]
        # What was started is nsenter, which waits for the program: its only child.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in children:
            os.kill(int(pid), number)
        if number is signal.SIGCONT:
            os.kill(process.pid, number)  # it stops itself when its child is stopped
        if number is signal.SIGKILL:
            process.wait()

    def reap(self) -> None:
        """Wait for every process, once the sandbox has been killed."""
        for process in self.processes.values():
            process.wait()

    def require_all(self) -> None:
        """Raise NotReady, with the end of its log, if any process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                log = self.run.logs / f"{name}.log"
                last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
                raise NotReady(f"{name} ended with {process.returncode}; {log} ends with\n{last}")


def open_sandbox(run: Run, hold: Path, search_path: str, kept: bool) -> Sandbox:
    """Make the namespaces, held by the program `hold`, and join them to this machine's network.

    Unless `kept`, the kernel kills the sandbox when this thread's process dies, however it dies.
    """
    for folder in PRIVATE:
        Path(folder).mkdir(parents=True, exist_ok=True)
    tied = () if kept else ("setpriv", "--pdeathsig", "KILL")
    settings = " ".join(f"{name}={value}" for name, value in KERNEL_SETTINGS.items())
    prepare = PREPARE.format(private=" ".join(PRIVATE), settings=settings, hold=hold)
    with (run.logs / "sandbox.log").open("wb") as log:
        unshare = subprocess.Popen(
            [
                *tied,
                "unshare",
                "--fork",
                "--kill-child=KILL",
                "--pid",
                "--mount-proc",
                "--mount",
                "--net",
                "--propagation",
                "private",
                "sh",
                "-c",
                prepare,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    pid = _wait_for_hold(unshare, hold, run)
    record(run, sandbox=identify(pid))
    sandbox = Sandbox(run, pid, search_path, {"sandbox": unshare}, tied)
    _join_network(sandbox)
    return sandbox


def _wait_for_hold(unshare: subprocess.Popen[bytes], hold: Path, run: Run) -> int:
    """The pid of unshare's child once it has become `hold`, which says that all is mounted."""
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and unshare.poll() is None:
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/exe").resolve() == hold.resolve():
                return int(pid)
        time.sleep(0.01)
    unshare.kill()
    raise NotReady(f"the sandbox did not come up: {(run.logs / 'sandbox.log').read_text().strip()}")


def _join_network(sandbox: Sandbox) -> None:
    run = sandbox.run
    subprocess.run(
        ["ip", "link", "add", run.link, "type", "veth", "peer", "name", "eth0", "netns", str(sandbox.pid)], check=True
    )
    inside = (
        ["addr", "add", f"{run.node_address}/30", "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        ["route", "add", "default", "via", run.host_address],
    )
    for arguments in inside:
        subprocess.run(sandbox.enter("ip", *arguments, network_only=True), check=True)
    outside = (
        ["addr", "add", f"{run.host_address}/30", "dev", run.link],
        ["link", "set", run.link, "up"],
        ["route", "add", run.pod_range, "via", run.node_address],
        ["route", "add", run.service_range, "via", run.node_address],
    )
    for arguments in outside:
        subprocess.run(["ip", *arguments], check=True)
