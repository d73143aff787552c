"""Fetches a model from a Hugging Face compatible hub: once, under a lock, resumable, every file checked.

Standard library only, since the preflight, `pagemill pull` and the server's start all use it and the first has nothing else. The
hub is `$HF_ENDPOINT`, the token `$HF_TOKEN`; proxies and CA bundles are urllib's usual variables (HTTPS_PROXY, SSL_CERT_FILE).
API: https://huggingface.co/docs/hub/api, files under /{repo}/resolve/{commit}/{file}. Pickles are never fetched.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from pagemill import checksums
from pagemill.endpoints import HUB_ENDPOINT_ENV, HUB_TOKEN_ENV
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import hub_folder
from pagemill.model_ref import ModelRef

DEFAULT_ENDPOINT = "https://huggingface.co"
MANIFEST = ".pagemill.json"  # what was fetched: repository, commit, files; written last, so its presence means complete
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20
_WANTED = (".json", ".safetensors", ".jinja", ".model")
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a revision."""

    name: str
    size: int  # bytes
    sha256: str | None  # of large (LFS) files
    git_sha1: str | None  # of the others: git's blob id


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision, pinned to its commit, and the files that serving it takes."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def pull(ref: ModelRef, progress: Progress = lambda done, total: None, environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch a model into the models folder and return its folder; a model that is there already is checked against the hub's
    list by size and not fetched again.

    Raises PagemillError: ModelNotFound, GatedModel, HubUnreachable, ChecksumMismatch, DiskFull, UnsafeModelFormat.
    """
    folder = hub_folder(ref, environ)
    hub = _Hub(environ)
    revision = hub.revision(ref)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            _fetch_all(hub, revision, folder, progress)
    except OSError as error:
        raise _disk_error(error, folder) from None
    return folder


def _fetch_all(hub: _Hub, revision: Revision, folder: Path, progress: Progress) -> None:
    done = 0
    for file in revision.files:
        target = folder / file.name
        if not (target.is_file() and target.stat().st_size == file.size and _recorded(folder, revision)):
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


def _fetch(hub: _Hub, revision: Revision, file: HubFile, target: Path, progress: Callable[[int], None]) -> None:
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
            while chunk := response.read(CHUNK):
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
    if not checksums.matches(part, size=file.size, sha256=file.sha256, git_sha1=file.git_sha1):
        part.unlink()
        raise PagemillError(
            FailureReason.CHECKSUM_MISMATCH,
            f"{file.name} of {revision.repo} does not match the hub's checksum and was removed: run it again",
        )
    part.replace(target)


class _Hub:
    """The hub's HTTP side: every error becomes a typed one here."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.endpoint = (environ.get(HUB_ENDPOINT_ENV) or DEFAULT_ENDPOINT).rstrip("/")
        self._token = environ.get(HUB_TOKEN_ENV)

    def revision(self, ref: ModelRef) -> Revision:
        name = urllib.parse.quote(ref.revision or "main", safe="")
        url = f"{self.endpoint}/api/models/{ref.location}/revision/{name}?blobs=true"
        with self._open(url, ref.location) as response:
            try:
                body: dict[str, Any] = json.loads(response.read())
                files = tuple(_file(entry) for entry in body["siblings"])
                commit = str(body["sha"])
            except (ValueError, KeyError, TypeError, HTTPException) as error:
                raise PagemillError(
                    FailureReason.HUB_UNREACHABLE, f"{url} did not answer as a hub does ({error!r}): check HF_ENDPOINT"
                ) from None
        return Revision(ref.location, commit, _wanted(files, ref.location))

    def open_file(self, revision: Revision, file: HubFile, start: int) -> HTTPResponse:
        path = urllib.parse.quote(file.name)
        url = f"{self.endpoint}/{revision.repo}/resolve/{revision.commit}/{path}"
        return self._open(url, revision.repo, {"Range": f"bytes={start}-"} if start else {})

    def _open(self, url: str, repo: str, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        if not url.startswith(("http://", "https://")):
            raise PagemillError(FailureReason.INVALID_CONFIGURATION, f"{HUB_ENDPOINT_ENV} must be an http(s) address")
        request = urllib.request.Request(url, headers={"User-Agent": "pagemill", **(headers or {})})
        if self._token:  # unredirected: a storage host that the hub points to must not see it
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
            return response
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code, repo) from None
        except (OSError, HTTPException) as error:
            raise PagemillError(
                FailureReason.HUB_UNREACHABLE,
                f"{self.endpoint} can't be reached ({getattr(error, 'reason', error)}): check the network, HTTPS_PROXY "
                f"and {HUB_ENDPOINT_ENV}",
            ) from None

    def _refusal(self, code: int, repo: str) -> PagemillError:
        if code in (401, 403):
            return PagemillError(
                FailureReason.GATED_MODEL,
                f"{repo} is gated, private or does not exist: ask for access on the hub and set {HUB_TOKEN_ENV} "
                "(in a cluster hfTokenSecretRef)",
            )
        if code == 404:
            return PagemillError(FailureReason.MODEL_NOT_FOUND, f"{repo} or the revision is not on {self.endpoint}")
        return PagemillError(FailureReason.HUB_UNREACHABLE, f"{self.endpoint} answered {code}: try again later")


def _file(entry: Mapping[str, Any]) -> HubFile:
    lfs = entry.get("lfs") or {}
    size = lfs.get("size", entry.get("size"))
    name = str(entry["rfilename"])
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"file name {name!r}")
    return HubFile(name, int(size or 0), lfs.get("sha256"), None if lfs else entry.get("blobId"))


def _wanted(files: tuple[HubFile, ...], repo: str) -> tuple[HubFile, ...]:
    """What serving takes: weights as safetensors (else one GGUF), configs, tokenizer and template; no pickles."""
    top = [file for file in files if "/" not in file.name]
    chosen = [file for file in top if file.name.endswith(_WANTED)]
    if not any(file.name.endswith(".safetensors") for file in chosen):
        ggufs = [file for file in top if file.name.endswith(".gguf")]
        if not ggufs:
            pickled = any(file.name.endswith((".bin", ".pt", ".pth")) for file in top)
            raise PagemillError(
                FailureReason.UNSAFE_MODEL_FORMAT if pickled else FailureReason.MODEL_NOT_FOUND,
                f"{repo} has no safetensors or GGUF weights"
                + (", only pickles, which are never read" if pickled else ""),
            )
        if len(ggufs) > 1:
            names = ", ".join(file.name for file in ggufs)
            raise PagemillError(
                FailureReason.MODEL_INVALID,
                f"{repo} has several GGUF files ({names}): fetch one yourself and use file://",
            )
        chosen += ggufs
    return tuple(chosen)


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
    return PagemillError(FailureReason.HUB_UNREACHABLE, f"fetching into {folder} failed: {error}")
