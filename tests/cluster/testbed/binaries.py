"""Builds the programs of a Kubernetes node and control plane from pinned Go modules, once.

Owns the lists of programs and the cache folders that hold them: one for what every cluster needs, one for each extra
module that only some tests ask for, named after the hash of their go.mod and go.sum files. Each program is published
there by a rename, so a build that dies goes on where it was.
`KUBEBUILDER_ASSETS` (kube-apiserver, etcd, kubectl) is honoured. Knows nothing of how they are run.
Called by cluster and conftest, and by hand: `python tests/cluster/cluster.py build`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.cache import cluster_cache, exclusive, hash_files
from testbed.toolchain import find_go

MODULES = Path(__file__).resolve().parent.parent / "go"
KUBEBUILDER_PROGRAMS = ("kube-apiserver", "etcd", "kubectl")


@dataclass(frozen=True)
class Program:
    """One program to build; `seconds` is what it took from bare on two cores, for the forecast."""

    name: str
    module: str  # a folder of go/, with a go.mod of its own
    package: str
    seconds: int
    tags: str = ""


PROGRAMS = (
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", 230),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", 40),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", 20),
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", 110),
    Program("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", 15),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", 60),
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3", 25),
    Program("helm", "kubernetes", "helm.sh/helm/v4/cmd/helm", 25),
    Program(
        "containerd",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd",
        40,
        "no_btrfs no_devmapper no_zfs",
    ),
    Program(
        "containerd-shim-runc-v2",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        10,
        "no_btrfs no_devmapper no_zfs",
    ),
    Program(
        "ctr",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/ctr",
        10,
        "no_btrfs no_devmapper no_zfs",
    ),
    Program("pause", "containerd", "./pause", 2),
)

# Built only when somebody asks for their module; one line a program.
EXTRAS = (
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", 60),
    Program("argocd", "argocd", "github.com/argoproj/argo-cd/v3/cmd", 280),
    Program("keda-operator", "keda", "github.com/kedacore/keda/v2/cmd/operator", 250),
    Program("keda-adapter", "keda", "github.com/kedacore/keda/v2/cmd/adapter", 50),
)


@dataclass(frozen=True)
class Binaries:
    """Every program's path. `folder` holds all but those that KUBEBUILDER_ASSETS brought."""

    folder: Path
    assets: Path | None
    programs: tuple[Program, ...] = PROGRAMS

    def path(self, name: str) -> Path:
        """Where a program lies, whether it has been built or not."""
        if self.assets and name in KUBEBUILDER_PROGRAMS and (self.assets / name).exists():
            return self.assets / name
        return self.folder / name

    def missing(self) -> tuple[Program, ...]:
        """The programs that still have to be built."""
        return tuple(program for program in self.programs if not self.path(program.name).exists())

    def search_path(self) -> str:
        """A PATH on which our programs come first (containerd looks for its shim there)."""
        return f"{self.folder}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def locate(extra: str | None = None) -> Binaries:
    """Where this checkout's programs lie or will lie: the cluster's, or those of one `extra` module."""
    programs = tuple(program for program in EXTRAS if program.module == extra) if extra else PROGRAMS
    pins = [pin for module in sorted({program.module for program in programs}) for pin in _pins(module)]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return Binaries(cluster_cache() / hash_files(pins), Path(assets) if assets else None, programs)


def _pins(module: str) -> list[Path]:
    return sorted((MODULES / module).glob("go.*"))


def build(extra: str | None = None) -> Binaries:
    """Build what is missing and say so, one line a program. Returns at once when nothing is."""
    binaries = locate(extra)
    if not binaries.missing():
        return binaries
    with exclusive("build"):
        missing = binaries.missing()
        if missing:
            _build_all(binaries, missing)
    return binaries


def _build_all(binaries: Binaries, missing: tuple[Program, ...]) -> None:
    go = find_go()
    binaries.folder.mkdir(parents=True, exist_ok=True)
    minutes = max(1, round(sum(program.seconds for program in missing) / 60))
    print(
        f"building {len(missing)} programs for the cluster tests into {binaries.folder}: "
        f"once, about {minutes} min on two cores",
        flush=True,
    )
    for number, program in enumerate(missing, 1):
        print(
            f"  [{number}/{len(missing)}] {program.name} (about {program.seconds} s) … ",
            end="",
            flush=True,
        )
        started = time.monotonic()
        _build_one(go, program, binaries.folder)
        print(f"{time.monotonic() - started:.0f} s", flush=True)


def _build_one(go: Path, program: Program, folder: Path) -> None:
    module = MODULES / program.module
    unfinished = folder / f".{program.name}.unfinished"
    command = ["nice", str(go), "build", "-trimpath", "-ldflags", _link_flags(module)]
    if program.tags:
        command += ["-tags", program.tags]
    subprocess.run(
        [*command, "-o", str(unfinished), program.package],
        cwd=module,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
    )
    unfinished.rename(folder / program.name)


def _link_flags(module: Path) -> str:
    """Strip symbols and stamp Kubernetes' version: kubectl and helm can't parse an unstamped server's."""
    pinned = re.search(r"k8s\.io/kubernetes v((\d+)\.(\d+)\.\d+)", (module / "go.mod").read_text())
    if not pinned:
        return "-s -w"
    stamps = {"gitVersion": f"v{pinned[1]}", "gitMajor": pinned[2], "gitMinor": pinned[3]}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return "-s -w " + " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in stamps.items())
