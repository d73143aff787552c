"""The operator's pods as the tests of its availability see them: who leads, who has written what, and how to harm one.

Needs a cluster of our own, with its audit log and its network. Called by test_ha, test_faults and test_api_pressure.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from testbed.cluster import Cluster
from testbed.errors import NotReady
from testbed.node import Node
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
POD_NAME = "authentication.kubernetes.io/pod-name"  # in the audit log, from the pod's own token
TABLE = "pagemill_tests"
CALLS = re.compile(r'pagemill_operator_api_requests_total\{code="(?P<code>\w+)".*\} (?P<count>\S+)')
UNREST = timedelta(minutes=2)
SERVER_ERRORS = ("500", "502", "503", "504")


@dataclass(frozen=True)
class Write:
    """One write that the API server was asked for by an operator."""

    at: datetime
    pod: str
    verb: str
    resource: str  # with its subresource
    namespace: str
    name: str


@dataclass(frozen=True)
class Operators:
    """The chart's operator pods."""

    cluster: Cluster

    @property
    def _node(self) -> Node:
        if not self.cluster.node:
            raise NotReady("an operator can be harmed on a cluster of our own only")
        return self.cluster.node

    def pods(self) -> dict[str, dict[str, Any]]:
        """By name; those that are being deleted left out."""
        selector = quote(f"app.kubernetes.io/name={OPERATOR}")
        pods = self.cluster.read(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    def restarts(self) -> dict[str, int]:
        """Of each pod's container."""
        return {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in self.pods().items()}

    def holder(self) -> str:
        """Who holds the Lease: the pod's name and what tells its process from others; empty when nobody does."""
        lease = self.cluster.read(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{OPERATOR}")
        return str(lease["spec"].get("holderIdentity") or "")

    def leader(self) -> str:
        """The name of the pod that leads, as soon as one does."""

        def look() -> str | None:
            name = self.holder().rpartition("_")[0]
            return name if name in self.pods() else None

        return eventually("a leader", look)

    def standby(self) -> str:
        """The name of another one, as soon as it is ready."""
        leader = self.leader()

        def look() -> str | None:
            ready = [
                name
                for name, pod in self.pods().items()
                if name != leader and pod["status"]["containerStatuses"][0]["ready"]
            ]
            return ready[0] if ready else None

        return eventually("a standby", look)

    def await_other(self, holder: str, seconds: float = 300) -> str:
        """The holder once it is another than that one."""

        def look() -> str:
            found = self.holder()
            if found and found != holder:
                return found
            raise LookupError(f"it is {found!r} still")

        return eventually("another holder of the Lease", look, seconds)

    def writes(self, since: datetime, *, leases: bool = False) -> list[Write]:
        """Of all operators, oldest first; the Lease's own only when asked for."""
        found = [write_of(event) for event in self.cluster.audit() if event["user"]["username"] == ACCOUNT]
        return sorted(
            (write for write in found if write.at >= since and (write.resource == "leases") is leases),
            key=lambda write: write.at,
        )

    def come_to_rest(self, seconds: float) -> None:
        """Until they have written nothing for so long, the Lease aside: what is under way may end first, within two minutes."""
        began = now()
        while True:
            written = self.writes(began)
            last = written[-1].at if written else began
            left = seconds - (now() - last).total_seconds()
            if left <= 0:
                return
            assert last - began < UNREST, f"they do not come to rest: {written[-5:]}"
            wait(left)

    def log(self, pod: str, since: datetime, *more: str) -> list[tuple[datetime, str]]:
        """Its lines, each with its time."""
        stamp = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        text = self.cluster.kubectl("logs", pod, "-n", NAMESPACE, "--timestamps", f"--since-time={stamp}", *more)
        lines = (line.partition(" ") for line in text.splitlines())
        return [(time_of(stamped), words) for stamped, _, words in lines]

    def failed_calls(self, pod: str) -> int:
        """How many of its calls of the API, the watches' aside, had no answer or a server's error, since it runs."""
        counts = (CALLS.match(line) for line in self.metrics(pod))
        return sum(
            int(float(found["count"])) for found in counts if found and found["code"] in ("none", *SERVER_ERRORS)
        )

    def metrics(self, pod: str) -> list[str]:
        """The lines of its own page."""
        address = self.pods()[pod]["status"]["podIP"]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{address}:9402/metrics", timeout=60) as answer:
            return list(answer.read().decode().splitlines())

    def send(self, pod: str, signal: str) -> None:
        """A signal to its process."""
        container = self.pods()[pod]["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        subprocess.run(
            self._node.sandbox.enter(*self._node.ctr("tasks", "kill", "--signal", signal, container)),
            check=True,
            capture_output=True,
        )

    @contextlib.contextmanager
    def cut_off(self, *pods: str, how: str = "drop") -> Iterator[None]:
        """Let nothing of these pods reach the API server. `how`: "drop", or "reject with tcp reset" to cut open connections."""
        addresses = ", ".join(self.pods()[pod]["status"]["podIP"] for pod in pods)
        # Before kube-proxy makes the node's address of the ClusterIP.
        rules = f"""
            table ip {TABLE} {{
                chain cut {{
                    type filter hook prerouting priority raw; policy accept;
                    ip saddr {{ {addresses} }} tcp dport {{ 443, 6443 }} {how}
                }}
            }}
        """
        if how != "drop":  # a reset can be sent from the input hook only, where the address is the node's already
            rules = rules.replace("prerouting priority raw", "input priority filter")
        self._nft("-f", "-", stdin=rules)
        try:
            yield
        finally:
            self._nft("delete", "table", "ip", TABLE)

    def _nft(self, *arguments: str, stdin: str | None = None) -> None:
        subprocess.run(
            self._node.sandbox.enter("nft", *arguments, network_only=True),
            input=stdin,
            text=True,
            check=True,
            capture_output=True,
        )


def write_of(event: dict[str, Any]) -> Write:
    """From an audit event."""
    target = event["objectRef"]
    resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
    pod = event["user"].get("extra", {}).get(POD_NAME, [""])[0]
    at = time_of(event["requestReceivedTimestamp"])
    return Write(at, pod, event["verb"], resource, target.get("namespace", ""), target.get("name", ""))


def time_of(text: str) -> datetime:
    """Of an RFC 3339 time with up to nanoseconds."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    whole = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    return whole + timedelta(microseconds=int(fraction[:6].ljust(6, "0") or 0))


def now() -> datetime:
    """To be compared with the times of logs: all clocks here are this machine's."""
    return datetime.now(UTC)


def wait(seconds: float) -> None:
    """An outage's length, or a rest in which nothing must happen."""
    time.sleep(seconds)
