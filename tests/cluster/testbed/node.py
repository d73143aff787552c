"""The node of one run: containerd with runc, the kubelet and kube-proxy.

Owns their configuration files, the CNI configuration, and what this kind of kernel (cgroup v1) needs.
Knows nothing of which images there are but the sandbox image's name. Called by cluster.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import Binaries
from testbed.control_plane import NODE, ControlPlane
from testbed.ready import wait_until
from testbed.sandbox import Sandbox

PAUSE_IMAGE = "pagemill.dev/testbed/pause:1"
KUBELET_PORT = 10250

CONTAINERD = """
version = 3
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{cni}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
"""


@dataclass(frozen=True)
class Node:
    """The programs of a node and where to run them."""

    binaries: Binaries
    sandbox: Sandbox
    control_plane: ControlPlane

    @property
    def folder(self) -> Path:
        """The node's data and configuration."""
        return self.sandbox.run.folder / "node"

    @property
    def containerd_root(self) -> Path:
        """containerd's images and snapshots."""
        return self.sandbox.run.folder / "containerd"

    @property
    def containerd_socket(self) -> Path:
        """Where ctr and the kubelet reach containerd."""
        return self.sandbox.run.sockets / "containerd.sock"

    def ctr(self, *arguments: str) -> list[str]:
        """The command line of containerd's client, on the images and containers of Kubernetes."""
        return [str(self.binaries.path("ctr")), "-a", str(self.containerd_socket), "-n", "k8s.io", *arguments]

    def start_containerd(self) -> None:
        """Start containerd and return when it answers."""
        self.folder.mkdir()
        self._write_cni()
        config = self.folder / "containerd.toml"
        config.write_text(
            CONTAINERD.format(
                root=self.containerd_root,
                state=self.sandbox.run.sockets / "containerd",
                socket=self.containerd_socket,
                cni=self.folder / "cni",
                pause=PAUSE_IMAGE,
            )
        )
        process = self.sandbox.start("containerd", str(self.binaries.path("containerd")), "--config", str(config))
        wait_until("containerd", self._containerd_answers, process, lambda: self.sandbox.run.logs / "containerd.log")

    def start_kubelet(self) -> None:
        """Start the kubelet and kube-proxy; the node registers itself."""
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_configuration(), indent=1))
        self.sandbox.start(
            "kubelet",
            str(self.binaries.path("kubelet")),
            f"--config={config}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--kubeconfig={self.control_plane.kubeconfig(f'system:node:{NODE}')}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.sandbox.run.node_address}",
        )
        address = self.sandbox.run.node_address
        self.sandbox.start(
            "kube-proxy",
            str(self.binaries.path("kube-proxy")),
            "--proxy-mode=nftables",
            f"--kubeconfig={self.control_plane.kubeconfig('system:kube-proxy')}",
            f"--hostname-override={NODE}",
            f"--bind-address={address}",
            f"--metrics-bind-address={address}:10249",
            f"--healthz-bind-address={address}:10256",
            f"--cluster-cidr={self.sandbox.run.pod_range}",
            "--nodeport-addresses=primary",
            # The size of the connection table is this machine's own, and is not to be set from within a sandbox.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
        )

    def _containerd_answers(self) -> bool:
        asked = subprocess.run(self.ctr("version"), capture_output=True, check=False)
        return asked.returncode == 0

    def _kubelet_configuration(self) -> dict[str, object]:
        run = self.sandbox.run
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": run.node_address,
            "port": KUBELET_PORT,
            "healthzBindAddress": run.node_address,
            # Reached from the sandbox and its pods only; the API server has no client certificate here.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.containerd_socket}",
            "podLogsDir": str(run.logs / "pods"),
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,  # the tests' images are not to be had again from anywhere
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "10s",
            "registerNode": True,
        }

    def _write_cni(self) -> None:
        folder = self.folder / "cni"
        folder.mkdir()
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,  # a pod that calls its own Service
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.sandbox.run.pod_range}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        config = {"cniVersion": "1.0.0", "name": "testbed", "plugins": plugins}
        (folder / "10-testbed.conflist").write_text(json.dumps(config, indent=1))
