"""The `model` field: which kind of place it names. Pure text, no file is touched here.

`org/name[@revision]` and `hf://org/name[@revision]` name a hub model; `file:///path` and a plain path (absolute, or starting
with `.` or `~`) a local one; `pvc://claim/path` and `oci://image/path` places that only a cluster can mount.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pagemill.failures import FailureReason, PagemillError

Kind = Literal["hub", "file", "pvc", "oci"]
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A parsed reference. `location` is org/name for a hub model, a path for a file, claim or image for the others."""

    kind: Kind
    location: str
    revision: str | None = None  # hub only
    path: str = ""  # pvc: the path inside the claim, without a leading slash


def parse(text: str) -> ModelRef:
    """Read a reference; raises PagemillError(InvalidConfiguration) that says which forms there are."""
    if not text or text != text.strip() or "\0" in text:
        raise _refuse(text)
    if text.startswith("pvc://"):
        return _claim(text)
    if text.startswith("oci://"):
        return _image(text)
    if text.startswith("file://"):
        path = text.removeprefix("file://")
        if not path.startswith("/"):
            raise _refuse(text)
        return ModelRef("file", path)
    if text.startswith("hf://"):
        return _hub(text.removeprefix("hf://"), text)
    if "://" in text:
        raise _refuse(text)
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return ModelRef("file", text)
    return _hub(text, text)


def _claim(text: str) -> ModelRef:
    claim, _, path = text.removeprefix("pvc://").partition("/")
    if not _CLAIM.fullmatch(claim) or ".." in path.split("/"):
        raise _refuse(text)
    return ModelRef("pvc", claim, path=path.strip("/"))


def _image(text: str) -> ModelRef:
    image = text.removeprefix("oci://")  # an image's name holds slashes itself
    if not image or image.startswith("/") or any(letter.isspace() for letter in image):
        raise _refuse(text)
    return ModelRef("oci", image)


def _hub(name: str, text: str) -> ModelRef:
    repo, at, revision = name.partition("@")
    if not _REPO.fullmatch(repo) or ".." in name or (at and not _REVISION.fullmatch(revision)):
        raise _refuse(text)
    return ModelRef("hub", repo, revision=revision or None)


def _refuse(text: str) -> PagemillError:
    return PagemillError(
        FailureReason.INVALID_CONFIGURATION,
        f"model {text!r} is not a model reference: write org/name, hf://org/name@revision, file:///path, "
        "pvc://claim/path or oci://image/path",
    )
