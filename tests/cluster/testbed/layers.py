"""Reads images out of buildah's storage: the manifest, the configuration, and the exact bytes of a layer.

`buildah push` writes every layer of an image, compressed, whatever the receiver has: a minute and a half
for torch's after each change of our wheel. The storage keeps each layer as files and a record of how its tar
archive was split around them (tar-split), from which a layer that is missing is put together again;
its digest is checked. Called by seed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from testbed.buildah import storage
from testbed.errors import TestbedError


@dataclass(frozen=True)
class StoredImage:
    """One image in the storage."""

    manifest: bytes
    configuration: bytes
    layers: tuple[str, ...]  # digests of the uncompressed archives, lowest first

    @property
    def manifest_digest(self) -> str:
        """What the image is known by."""
        return digest_of(self.manifest)


def find_image(name: str) -> StoredImage:
    """The image of this name, which the storage must hold."""
    entries = json.loads((storage() / "overlay-images" / "images.json").read_text())
    entry = next((entry for entry in entries if name in entry.get("names", [])), None)
    if entry is None:
        raise TestbedError(f"buildah's storage has no image {name}")
    folder = storage() / "overlay-images" / entry["id"]
    manifest = (folder / "manifest").read_bytes()
    described = json.loads(manifest)
    # Large items lie in files named by the base64 of their own name.
    configuration = (folder / ("=" + base64.b64encode(described["config"]["digest"].encode()).decode())).read_bytes()
    return StoredImage(manifest, configuration, tuple(layer["digest"] for layer in described["layers"]))


def write_layer(digest: str, destination: Path) -> None:
    """Write a layer's archive; TestbedError if the storage does not hold it byte for byte."""
    entries: list[dict[str, Any]] = json.loads((storage() / "overlay-layers" / "layers.json").read_text())
    for entry in entries:
        if entry.get("diff-digest") == digest:
            break
    else:
        raise TestbedError(f"buildah's storage has no layer {digest}")
    files = storage() / "overlay" / entry["id"] / "diff"
    with (
        gzip.open(storage() / "overlay-layers" / f"{entry['id']}.tar-split.gz") as record,
        destination.open("wb") as out,
    ):
        for line in record:
            _write_part(json.loads(line), files, out)
    with destination.open("rb") as written:
        found = f"sha256:{hashlib.file_digest(written, 'sha256').hexdigest()}"
    if found != digest:
        raise TestbedError(f"layer {digest} came out of buildah's storage as {found}: rm -r {storage()} and run again")


def sizes(image: StoredImage) -> tuple[int, ...]:
    """Bytes of each layer's uncompressed archive, lowest first: about what a node's disk holds of it."""
    entries: list[dict[str, Any]] = json.loads((storage() / "overlay-layers" / "layers.json").read_text())
    known = {entry.get("diff-digest"): int(entry["diff-size"]) for entry in entries if "diff-size" in entry}
    return tuple(known[digest] for digest in image.layers)


def digest_of(content: bytes) -> str:
    """As OCI writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _write_part(part: dict[str, Any], files: Path, out: IO[bytes]) -> None:
    if part["type"] == 2:  # the archive's own bytes: headers and padding
        out.write(base64.b64decode(part["payload"]))
    elif part.get("size"):  # a file's content
        with (files / part["name"]).open("rb") as content:
            shutil.copyfileobj(content, out, 1 << 20)
