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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import Binaries
from testbed.buildah import blobs_of, push_image
from testbed.cache import cluster_cache, exclusive
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

    def holds(self, images: list[str]) -> bool:
        """Whether all of these images have been imported."""
        return all(self._marker(image).exists() for image in images)

    def add(self, images: list[str]) -> None:
        """Import those that are missing; buildah's storage must hold them."""
        with exclusive("seed"):
            missing = [image for image in images if not self._marker(image).exists()]
            if not missing:
                return
            with self._containerd():
                for image in missing:
                    print(f"  importing {image}", flush=True)
                    self._import(image)
                    self._marker(image).touch()

    def plant(self, root: Path) -> None:
        """Make `root` a containerd root with all of the seed's images."""
        with exclusive("seed"):
            self.folder.mkdir(exist_ok=True)
            subprocess.run(["cp", "--archive", "--link", f"{self.folder}/.", str(root)], check=True)
        for database in root.rglob("*.db"):
            copy = database.with_suffix(".copy")
            shutil.copy2(database, copy)
            copy.rename(database)

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

    def _ctr(self, *arguments: str, archive: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        command = [str(self.binaries.path("ctr")), "-a", str(SOCKETS / "containerd.sock"), "-n", "k8s.io", *arguments]
        return subprocess.run([*command, *([str(archive)] if archive else [])], capture_output=True, check=False)

    def _import(self, image: str) -> None:
        manifest = push_image(image)
        held = self.folder / "io.containerd.content.v1.content" / "blobs"
        archive = SOCKETS.parent / "import.tar"
        archive = cluster_cache() / "import.tar"
        with tarfile.open(archive, "w") as tar:
            _add_text(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
            _add_text(tar, "index.json", _index(image, manifest, blobs_of(manifest)[manifest]))
            for digest, file in blobs_of(manifest).items():
                name = digest.replace(":", "/")
                if digest == manifest or not (held / name).exists():
                    tar.add(file, f"blobs/{name}")
        try:
            done = self._ctr("images", "import", "--local", "--snapshotter", "overlayfs", archive=archive)
            if done.returncode != 0:
                raise RuntimeError(f"ctr could not import {image}: {done.stderr.decode()[-2000:]}")
        finally:
            archive.unlink()


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _index(image: str, manifest: str, file: Path) -> str:
    described = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": manifest,
        "size": file.stat().st_size,
        "annotations": {"io.containerd.image.name": image},
    }
    return json.dumps({"schemaVersion": 2, "manifests": [described]})
