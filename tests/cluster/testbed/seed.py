"""containerd's data with every image imported once; a run gets a copy made of hard links, in a second.

Owns the seed folder in the cache. An image is imported by its missing blobs alone, so that a new wheel
costs its own layer and not torch's. Layers are never written to, so runs can share their files; the
databases are copied. Called by cluster.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import Binaries
from testbed.cache import cluster_cache, exclusive
from testbed.errors import TestbedError
from testbed.layers import StoredImage, digest_of, find_image, write_layer
from testbed.ready import wait_until

SOCKETS = Path("/run/pagemill-testbed/seed")


@dataclass(frozen=True)
class Seed:
    """The seed of these binaries' containerd."""

    binaries: Binaries

    @property
    def folder(self) -> Path:
        """containerd's root."""
        return cluster_cache() / "seed"

    def plant(self, images: list[str], root: Path) -> None:
        """Make `root` a containerd root with these images, which buildah's storage must hold.

        Under one lock from end to end: a run of another checkout may want others, and then these are dropped again.
        """
        with exclusive("seed"):
            self.folder.mkdir(exist_ok=True)
            missing = [image for image in images if not self._marker(image).exists()]
            if missing:
                self._add(missing)
            subprocess.run(["cp", "--archive", "--link", f"{self.folder}/.", str(root)], check=True)
            for database in root.rglob("*.db"):
                copy = database.with_suffix(".copy")
                shutil.copy2(database, copy)
                copy.rename(database)

    def _add(self, images: list[str]) -> None:
        with self._containerd():
            for image in images:
                print(f"  importing {image} … ", end="", flush=True)
                started = time.monotonic()
                self._import(image)
                self._marker(image).touch()
                print(f"{time.monotonic() - started:.0f} s", flush=True)
                self._forget_older(image)

    def _forget_older(self, image: str) -> None:
        """Drop what the seed has of the same repository under other tags; shared layers stay."""
        repository = image.rpartition(":")[0]
        for listed in self._ctr("images", "list", "--quiet").stdout.decode().split():
            if listed.startswith(f"{repository}:") and listed != image:
                self._ctr("images", "remove", "--sync", listed)
                self._marker(listed).unlink(missing_ok=True)

    def _marker(self, image: str) -> Path:
        return self.folder / f"imported-{image.replace('/', '_')}"

    @contextlib.contextmanager
    def _containerd(self) -> Iterator[None]:
        self.folder.mkdir(exist_ok=True)
        SOCKETS.mkdir(parents=True, exist_ok=True)
        config = SOCKETS / "containerd.toml"
        # The CRI plugins are off: they would look for a network configuration, and nothing is run here.
        config.write_text(
            f'version = 3\nroot = "{self.folder}"\nstate = "{SOCKETS}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", '
            '"io.containerd.cri.v1.images"]\n'
            f'[grpc]\naddress = "{SOCKETS}/containerd.sock"\n[ttrpc]\naddress = "{SOCKETS}/ttrpc.sock"\n'
        )
        log = SOCKETS / "containerd.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self.binaries.path("containerd")), "--config", str(config)],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PATH": self.binaries.search_path()},
            )
        try:
            wait_until("containerd", lambda: self._ctr("version").returncode == 0, process, lambda: log)
            yield
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(SOCKETS, ignore_errors=True)

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(self.binaries.path("ctr")), "-a", str(SOCKETS / "containerd.sock"), "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, check=False)

    def _import(self, image: str) -> None:
        stored = find_image(image)
        held = self.folder / "io.containerd.content.v1.content" / "blobs"
        with tempfile.TemporaryDirectory(dir=cluster_cache()) as folder:
            archive = Path(folder) / "import.tar"
            with tarfile.open(archive, "w") as tar:
                _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
                _add(tar, "index.json", _index(image, stored))
                for content in (stored.manifest, stored.configuration):
                    _add(tar, _blob(digest_of(content)), content)
                for digest in stored.layers:
                    if not (held / digest.replace(":", "/")).exists():
                        write_layer(digest, Path(folder) / "layer")
                        tar.add(Path(folder) / "layer", _blob(digest))
            done = self._ctr("images", "import", "--local", "--snapshotter", "overlayfs", str(archive))
        if done.returncode != 0:
            raise TestbedError(f"ctr could not import {image}: {done.stderr.decode()[-2000:]}")


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _index(image: str, stored: StoredImage) -> bytes:
    described = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": stored.manifest_digest,
        "size": len(stored.manifest),
        "annotations": {"io.containerd.image.name": image},
    }
    return json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
