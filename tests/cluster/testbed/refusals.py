"""What makes a real API server say no: no room for an account, a history that is gone, a Lease that never stands still.

Needs a cluster of our own. Called by test_api_pressure.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import re
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from testbed.cluster import Cluster
from testbed.control_plane import ETCD_PORT, ControlPlane
from testbed.release import NAMESPACE, OPERATOR

JAIL = "pagemill-jail"
REJECTED = re.compile(rf'apiserver_flowcontrol_rejected_requests_total\{{.*priority_level="{JAIL}".*\}} (\S+)')


@contextlib.contextmanager
def jail(cluster: Cluster) -> Iterator[None]:
    """The API server has no room at all for the operator's account: each of its calls, the Lease's too, gets a 429."""
    level = {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 0,
            "lendablePercent": 0,
            "borrowingLimitPercent": 0,
            # "Reject" would let one call at a time through, whatever the limit. The one that is queued waits for nothing.
            "limitResponse": {"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1}},
        },
    }
    everything = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": OPERATOR, "namespace": NAMESPACE}}],
        "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
        ],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }
    schema = {"priorityLevelConfiguration": {"name": JAIL}, "matchingPrecedence": 2, "rules": [everything]}
    group = "flowcontrol.apiserver.k8s.io/v1"
    for kind, spec in (("PriorityLevelConfiguration", level), ("FlowSchema", schema)):
        cluster.apply({"apiVersion": group, "kind": kind, "metadata": {"name": JAIL}, "spec": spec})
    try:
        yield
    finally:
        cluster.kubectl("delete", f"flowschema/{JAIL}", f"prioritylevelconfiguration/{JAIL}")


def rejected(cluster: Cluster) -> int:
    """Calls that the API server has turned away so, the watches' included; its own count."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(int(float(found[1])) for found in map(REJECTED.match, lines) if found)


def etcd(control_plane: ControlPlane, call: str, **body: object) -> dict[str, Any]:
    """One of etcd's calls, over its JSON gateway."""
    url = f"http://{control_plane.sandbox.run.node_address}:{ETCD_PORT}/v3/kv/{call}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def compact(control_plane: ControlPlane) -> None:
    """Let etcd forget everything but what is."""
    key = base64.b64encode(b"/registry").decode()
    revision = etcd(control_plane, "range", key=key)["header"]["revision"]
    etcd(control_plane, "compaction", revision=revision, physical=True)


@contextlib.contextmanager
def lease_edited(control_plane: ControlPlane) -> Iterator[None]:
    """A hand that changes the Lease's annotations, a hundred times a second."""
    config = json.loads(control_plane.kubeconfig("admin").read_text())
    api, headers = config["clusters"][0]["cluster"], {"Content-Type": "application/merge-patch+json"}
    headers["Authorization"] = f"Bearer {config['users'][0]['user']['token']}"
    trust = ssl.create_default_context(cafile=api["certificate-authority"])
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{OPERATOR}"
    enough = threading.Event()

    def edit() -> int:
        with contextlib.closing(
            http.client.HTTPSConnection(urllib.parse.urlsplit(api["server"]).netloc, context=trust, timeout=10)
        ) as connection:
            for number in itertools.count():
                if enough.wait(0.005):
                    return number
                body = {"metadata": {"annotations": {"example.com/edited": str(number)}}}
                connection.request("PATCH", path, json.dumps(body), headers)
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
        raise AssertionError("counting has no end")

    with ThreadPoolExecutor(1) as pool:
        editing = pool.submit(edit)
        try:
            yield
        finally:
            enough.set()
        assert editing.result(30) > 100
