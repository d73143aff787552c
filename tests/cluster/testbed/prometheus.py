"""Debian's Prometheus beside a cluster of the testbed: it scrapes the cluster's replicas and gateways, found by the API.

With the labels that a PodMonitor gives (namespace, pod, container). Debian builds it without discovery in Kubernetes, so it asks
here who there is (HTTP discovery). It ends with the cluster's sandbox. Called by test_keda.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testbed.cluster import Cluster
from testbed.errors import NotReady
from testbed.packages import ensure_packages
from testbed.ready import eventually
from testbed.sandbox import Sandbox

PORT = 9090
SCRAPE = "2s"
NAME = "prometheus"  # of the process and of its log
SELECTOR = "app.kubernetes.io/name in (pagemill-server,pagemill-gateway)"
SCRAPED_PORTS = ("http", "admin")  # as the containers call what has /metrics


@dataclass(frozen=True)
class Prometheus:
    """One that runs, or has run."""

    sandbox: Sandbox
    discovery: str  # URL

    @property
    def url(self) -> str:
        """From this machine, the sandbox and the pods alike."""
        return f"http://{self.sandbox.run.node_address}:{PORT}"

    def start(self) -> None:
        """With what an earlier one has kept; returns when it answers."""
        folder = self.sandbox.run.folder / NAME
        folder.mkdir(exist_ok=True)
        found = {"http_sd_configs": [{"url": self.discovery, "refresh_interval": SCRAPE}]}
        settings = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE}
        config = {"global": settings, "scrape_configs": [{"job_name": "pods", **found}]}
        (folder / "config.json").write_text(json.dumps(config))  # JSON is YAML
        self.sandbox.start(
            NAME,
            NAME,
            f"--config.file={folder / 'config.json'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.sandbox.run.node_address}:{PORT}",
        )
        eventually("Prometheus", self._answers)

    def stop(self) -> None:
        """End it at once; `start` brings it back."""
        self.sandbox.send(NAME, signal.SIGKILL)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        with self._open(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}") as answer:
            return list(json.load(answer)["data"]["result"])

    def _open(self, path: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(self.url + path, timeout=5)

    def _answers(self) -> bool:
        try:
            with self._open("/-/ready") as answer:
                return bool(answer.status == 200)
        except OSError as error:
            raise LookupError(str(error)) from error


@contextmanager
def scraping(cluster: Cluster) -> Iterator[Prometheus]:
    """One that runs; the package is installed if need be."""
    if cluster.node is None:
        raise NotReady("Prometheus is started beside clusters of our own only")
    ensure_packages(NAME)
    with _discovery(cluster) as url:
        prometheus = Prometheus(cluster.node.sandbox, url)
        prometheus.start()
        yield prometheus
        prometheus.stop()


@contextmanager
def _discovery(cluster: Cluster) -> Iterator[str]:
    """Who is to be scraped, for as long as the `with` lasts. After an error Prometheus stays with whom it knows."""

    class Pods(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                body = json.dumps(_targets(cluster)).encode()
            except subprocess.CalledProcessError as error:
                self.send_error(503, str(error.stderr)[:100])
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    assert cluster.run is not None
    with ThreadingHTTPServer((cluster.run.host_address, 0), Pods) as server:
        thread = threading.Thread(target=server.serve_forever, name="discovery")
        thread.start()
        try:
            yield f"http://{cluster.run.host_address}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def _targets(cluster: Cluster) -> list[dict[str, Any]]:
    listed = cluster.read(f"/api/v1/pods?{urllib.parse.urlencode({'labelSelector': SELECTOR})}")["items"]
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "namespace": pod["metadata"]["namespace"],
                "pod": pod["metadata"]["name"],
                "container": container["name"],
            },
        }
        for pod in listed
        if pod["status"].get("podIP") and pod["status"]["phase"] == "Running"
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
        if port.get("name") in SCRAPED_PORTS
    ]
