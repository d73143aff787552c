"""Fetches a model from a Hugging Face compatible hub: once, under a lock, resumable, every file checked.

Standard library only, since `pagemill pull`, which every image has, uses it as the server's start does (docs/decisions/001).
Owns the files on disk; the HTTP side is `hub_api`. Pickles are never fetched.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from pagemill import checksums
from pagemill.failures import FailureReason, PagemillError
from pagemill.hub_api import Hub, HubFile, Revision
from pagemill.model_files import hub_folder
from pagemill.model_ref import ModelRef
from pagemill.sizes import format_size

MANIFEST = ".pagemill.json"  # what was fetched: repository, commit, files; written last, so its presence means complete
CHUNK = 1 << 20
Progress = Callable[[int, int], None]  # bytes done, bytes in all; again with the same while a checksum is made


def pull(ref: ModelRef, progress: Progress = lambda done, total: None, environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch a model into the models folder and return its folder; a model that is there already is checked against the hub's
    list by size and not fetched again.

    Raises PagemillError: ModelNotFound, GatedModel, HubUnreachable, ChecksumMismatch, DiskFull, UnsafeModelFormat.
    """
    folder = hub_folder(ref, environ)
    hub = Hub(environ)
    revision = hub.revision(ref)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            _fetch_all(hub, revision, folder, progress)
    except OSError as error:
        raise _disk_error(error, folder) from None
    return folder


def recorded_commit(folder: Path) -> str | None:
    """The commit that was fetched into a folder, where it still lies there whole: every file of the record, by size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == file["size"] for name, file in manifest["files"].items())
        return str(manifest["commit"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _fetch_all(hub: Hub, revision: Revision, folder: Path, progress: Progress) -> None:
    done, recorded = 0, _recorded(folder, revision)
    wanting = []
    for file in revision.files:
        if not _complete(folder / file.name, file, recorded, lambda: progress(0, revision.size)):
            wanting.append(file)
    _check_room(folder, wanting)
    for file in revision.files:
        target = folder / file.name
        if file in wanting:
            target.parent.mkdir(parents=True, exist_ok=True)
            _fetch(hub, revision, file, target, lambda part, base=done: progress(base + part, revision.size))  # type: ignore[misc]
        done += file.size
        progress(done, revision.size)
    manifest = {
        "repo": revision.repo,
        "commit": revision.commit,
        "files": {file.name: {"size": file.size, "sha256": file.sha256} for file in revision.files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _recorded(folder: Path, revision: Revision) -> bool:
    """Whether what lies in the folder is this very commit, fetched whole and checked before."""
    try:
        return bool(json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("commit") == revision.commit)
    except (OSError, ValueError, AttributeError):
        return False


def _check_room(folder: Path, wanting: list[HubFile]) -> None:
    """Said before the first byte: a disk that fills up hinders whoever else uses it."""
    needed = sum(file.size - _size(folder / f"{file.name}.part") for file in wanting)
    disk = os.statvfs(folder)
    if needed > (free := disk.f_bavail * disk.f_frsize):
        raise PagemillError(
            FailureReason.DISK_FULL,
            f"the disk of {folder} has {format_size(free)} free, {format_size(needed)} are still to be fetched: free "
            f"{format_size(needed - free)}, or use a larger cache",
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _complete(target: Path, file: HubFile, recorded: bool, moved: Callable[[], None]) -> bool:
    """Whether a file need not be fetched: by size where a whole fetch was recorded, else (it broke off later) by checksum."""
    if not target.is_file() or target.stat().st_size != file.size:
        return False
    return recorded or _matches(target, file, moved)


def _matches(path: Path, file: HubFile, moved: Callable[[], None]) -> bool:
    return checksums.matches(path, size=file.size, sha256=file.sha256, git_sha1=file.git_sha1, moved=moved)


def _fetch(hub: Hub, revision: Revision, file: HubFile, target: Path, progress: Callable[[int], None]) -> None:
    """Download to `<name>.part`, going on where an earlier run stopped, check, and only then give it its name."""
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        part.unlink()
        have = 0
    if have < file.size or file.size == 0:
        with (
            hub.open_file(revision, file, have) as response,
            part.open("ab" if response.status == 206 else "wb") as out,
        ):
            have = have if response.status == 206 else 0
            while chunk := _read(response):
                out.write(chunk)
                have += len(chunk)
                progress(have)
            out.flush()
            os.fsync(out.fileno())
    if have < file.size:
        raise PagemillError(
            FailureReason.HUB_UNREACHABLE,
            f"the connection broke after {have} of {file.size} bytes of {file.name}: run it again, it goes on from there",
        )
    if not _matches(part, file, lambda: progress(have)):
        part.unlink()
        raise PagemillError(
            FailureReason.CHECKSUM_MISMATCH,
            f"{file.name} of {revision.repo} does not match the hub's checksum and was removed: run it again",
        )
    part.replace(target)


def _read(response: HTTPResponse) -> bytes:
    """The next bytes; a connection that breaks ends the file here, and its length then tells."""
    try:
        return response.read(CHUNK)
    except (OSError, HTTPException):
        return b""


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One fetch at a time, over processes and over pods that share a claim; freed by the kernel when its holder dies."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _disk_error(error: OSError, folder: Path) -> PagemillError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PagemillError(
            FailureReason.DISK_FULL, f"the disk of {folder} is full: free space, or use a larger cache"
        )
    return PagemillError(
        FailureReason.INVALID_CONFIGURATION,
        f"{error.filename or folder} can't be written ({error.strerror or error}): check the models folder",
    )
