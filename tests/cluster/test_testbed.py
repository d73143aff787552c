"""The cluster itself: a run that dies leaves nothing and hinders no other; records, layers and package lists are read right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import binaries as programs
from testbed import packages, toolchain
from testbed.binaries import MODULES, locate
from testbed.cache import hash_files
from testbed.cluster import Cluster, use_existing
from testbed.errors import NotPossibleHere, TestbedError
from testbed.ready import eventually
from testbed.run import Run, claim, discard, identify, is_alive, is_living, sweep
from testbed.sandbox import open_sandbox

START = """
import sys
sys.path.insert(0, {folder!r})
from testbed.cluster import up
from testbed.node import PAUSE_IMAGE
cluster = up([PAUSE_IMAGE], kept=False)
cluster.kubectl("create", "deployment", "left", "--image", PAUSE_IMAGE)
cluster.kubectl("rollout", "status", "deployment/left", "--timeout=300s")
cluster.node.control_plane.freeze("kube-scheduler")  # what stands still must go as well
print("RUN", cluster.run.number, flush=True)
sys.stdin.read()
"""


@pytest.mark.cluster
def test_a_killed_run_takes_everything_along(cluster: Cluster) -> None:
    """Beside another that runs, which goes on undisturbed: two clusters at once, then SIGKILL for the maker of one."""
    code = START.format(folder=str(Path(__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        said = next(line for line in maker.stdout if line.startswith("RUN"))
        run = Run(int(said.split()[1]))
        assert cluster.run is not None
        assert run.number != cluster.run.number
        assert is_living(run)
        assert interface(run.link)
        containers = list(run.containers.glob("*"))
        assert len(containers) == 2  # the pod's sandbox and its container
        maker.send_signal(signal.SIGKILL)
    eventually("the end of its network", lambda: not interface(run.link) or None)
    assert not processes_naming(str(run.folder))
    assert not mounts_naming(str(run.folder))
    sweep()
    assert not run.folder.exists()
    assert not run.sockets.exists()
    left = [path for container in containers for path in Path("/sys/fs/cgroup").glob(f"*/k8s.io/{container.name}")]
    assert left == []
    assert "node-1" in cluster.kubectl("get", "nodes")
    assert interface(cluster.run.link)


@pytest.mark.cluster
def test_an_ended_run_has_given_its_interface_back(cluster: Cluster) -> None:
    """The kernel ends a network namespace when it gets to it; the next run may take the number, and so the name, at once."""
    built = locate()
    for _ in range(5):
        run = claim(kept=False)
        sandbox = open_sandbox(run, built.path("pause"), built.search_path(), kept=False)
        assert interface(run.link)
        discard(run)
        gone = not interface(run.link)
        sandbox.reap()
        assert gone


@pytest.mark.cluster
def test_a_kubeconfig_of_the_users_own_is_left_alone(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "production"))
    assert "node-1" in cluster.kubectl("get", "nodes")


def test_an_existing_cluster_needs_no_program_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "locate", lambda: programs.Binaries(tmp_path / "nothing-built", None))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError, match="no kubectl on PATH"):
        use_existing(tmp_path / "config")
    for name in ("kubectl", "helm"):
        (tmp_path / name).touch(mode=0o755)
    found = use_existing(tmp_path / "config")
    assert (found.kubectl_program, found.helm_program) == (str(tmp_path / "kubectl"), str(tmp_path / "helm"))
    assert found.kubeconfig == tmp_path / "config"


@pytest.mark.cluster
def test_pods_are_seen_from_here_and_can_reach_the_api(pagemill: Cluster) -> None:
    """What the other tests build on: a pod's own account, the API's ClusterIP, logs and exec."""
    ask = "import urllib.request,ssl;t=open('/var/run/secrets/kubernetes.io/serviceaccount/token').read();"
    ask += "c=ssl.create_default_context(cafile='/var/run/secrets/kubernetes.io/serviceaccount/ca.crt');"
    ask += "r=urllib.request.Request('https://10.232.%d.1/version',headers={'Authorization':'Bearer '+t});"
    ask += "print(urllib.request.urlopen(r,context=c).read().decode())"
    assert pagemill.run is not None
    said = pagemill.kubectl(
        "exec", "-n", "pagemill-system", "deploy/pagemill-operator", "--", "python3", "-c", ask % pagemill.run.number
    )
    assert '"gitVersion": "v1.36' in said
    log = ("logs", "-n", "pagemill-system", "deploy/pagemill-operator")
    eventually("its log", lambda: "serves all namespaces" in pagemill.kubectl(*log) or None, seconds=60)


def test_a_process_is_not_taken_for_a_later_one_with_its_pid() -> None:
    me = identify(os.getpid())
    assert is_alive(me)
    assert not is_alive([me[0], me[1] + 1])
    assert not is_alive([2**22, 1])
    assert not is_alive(None)


def test_an_ended_child_that_nobody_asked_after_is_not_alive() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        identity = identify(child.pid)
        assert is_alive(identity)
        assert child.stdin is not None
        child.stdin.close()
        eventually("its end", lambda: not is_alive(identity) or None, seconds=60)


def test_the_cache_folder_follows_the_pins(tmp_path: Path) -> None:
    pins = tmp_path / "go.mod"
    pins.write_text("one")
    before = hash_files([pins])
    pins.write_text("two")
    assert hash_files([pins]) != before
    assert locate().folder.name == hash_files(
        [*sorted((MODULES / "containerd").glob("go.*")), *sorted((MODULES / "kubernetes").glob("go.*"))]
    )


@pytest.mark.parametrize("extra", sorted({program.module for program in programs.EXTRAS}))
def test_what_only_some_tests_need_has_a_folder_of_its_own(extra: str) -> None:
    """A new pin of an extra program must not have a whole Kubernetes built anew."""
    found = locate(extra)
    assert found.folder.name == hash_files(sorted((MODULES / extra).glob("go.*")))
    assert {program.module for program in found.programs} == {extra}
    assert all(program.module != extra for program in locate().programs)


def test_kubebuilder_assets_are_used_for_what_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etcd").touch()
    (tmp_path / "kubelet").touch()  # not one of the three of the convention
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    found = locate()
    assert found.path("etcd") == tmp_path / "etcd"
    assert found.path("kube-apiserver") == found.folder / "kube-apiserver"
    assert found.path("kubelet") == found.folder / "kubelet"


def test_packages_are_read_without_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "packages.txt"
    listed.write_text("# why\nrunc\n\nbuildah # builds\n")
    monkeypatch.setattr(packages, "LIST", listed)
    assert packages.wanted_packages() == ("runc", "buildah")


def test_who_is_not_root_is_told_how_to_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotPossibleHere, match="sudo -E make test"):
        packages.require_root()
    monkeypatch.setattr(packages, "missing_packages", lambda *more: ("runc", "buildah", *more))
    with pytest.raises(NotPossibleHere, match="apt-get install -y --no-install-recommends runc buildah"):
        packages.ensure_packages()
    with pytest.raises(NotPossibleHere, match="runc buildah redis-server"):
        packages.ensure_packages("redis-server")


def test_an_old_or_mute_go_is_told(tmp_path: Path) -> None:
    go = tmp_path / "go"
    for says, version in (
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.19 linux", (1, 19)),
        ("", (0, 0)),
    ):
        go.write_text(f"#!/bin/sh\necho '{says}'\n")
        go.chmod(0o755)
        assert toolchain.go_version(go) == version


def interface(name: str) -> bool:
    return Path(f"/sys/class/net/{name}").exists()


def processes_naming(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text in line and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def mounts_naming(text: str) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if text in line]
