"""The HTTP side of a Hugging Face compatible hub: lists a revision, opens its files, and makes every error a typed one.

The hub is `$HF_ENDPOINT`, the token `$HF_TOKEN`; proxies and CA bundles are urllib's usual variables (HTTPS_PROXY, SSL_CERT_FILE).
API: https://huggingface.co/docs/hub/api, files under /{repo}/resolve/{commit}/{file}. Called by `hub`; writes no file.
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

from pagemill.endpoints import HUB_ENDPOINT_ENV, HUB_TOKEN_ENV
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_ref import ModelRef

DEFAULT_ENDPOINT = "https://huggingface.co"
TIMEOUT = 30.0  # seconds without a byte
_WANTED = (".json", ".safetensors", ".jinja", ".model")
# In folders: how an embedding model's steps after the transformer are done, and a chat template for conversations with tools.
_BELOW = re.compile(r"\d+_\w+/config\.json|additional_chat_templates/tool_use\.jinja")
_OWN_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")  # others are copies (consolidated) or adapters


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


class Hub:
    """A hub and who we are there."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.endpoint = (environ.get(HUB_ENDPOINT_ENV) or DEFAULT_ENDPOINT).strip().rstrip("/")
        self._token = (environ.get(HUB_TOKEN_ENV) or "").strip()  # mounted secrets often end in a newline
        self._opener = urllib.request.build_opener(_Redirects)

    def revision(self, ref: ModelRef) -> Revision:
        """What a reference names now; raises PagemillError (ModelNotFound, GatedModel, HubUnreachable …)."""
        name = urllib.parse.quote(ref.revision or "main", safe="")
        url = f"{self.endpoint}/api/models/{ref.location}/revision/{name}?blobs=true"
        with self._open(url, ref.location) as response:
            try:
                body: dict[str, Any] = json.loads(response.read())
                files = tuple(_file(entry) for entry in body["siblings"])
                commit = str(body["sha"])
            except (OSError, HTTPException) as error:
                raise self._unreachable(error) from None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise PagemillError(
                    FailureReason.HUB_UNREACHABLE,
                    f"{url} did not answer as a hub does ({error!r}): check {HUB_ENDPOINT_ENV}",
                ) from None
        return Revision(ref.location, commit, _wanted(files, ref.location))

    def open_file(self, revision: Revision, file: HubFile, start: int, last: int | None = None) -> HTTPResponse:
        """A file's bytes from `start` on, up to the `last` one; a hub that knows no ranges answers 200 with the whole file."""
        commit, path = urllib.parse.quote(revision.commit, safe=""), urllib.parse.quote(file.name)
        url = f"{self.endpoint}/{revision.repo}/resolve/{commit}/{path}"
        wanted = f"bytes={start}-{'' if last is None else last}"
        return self._open(url, revision.repo, {"Range": wanted} if start or last is not None else {})

    def _open(self, url: str, repo: str, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        if not url.startswith(("http://", "https://")):
            raise PagemillError(FailureReason.INVALID_CONFIGURATION, f"{HUB_ENDPOINT_ENV} must be an http(s) address")
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "pagemill", **(headers or {})})
            if self._token:  # unredirected: a storage host that the hub points to must not see it
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            response: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
            return response
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refusal(error.code, repo) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        except ValueError:  # its text may quote the token
            raise PagemillError(
                FailureReason.INVALID_CONFIGURATION,
                f"{HUB_ENDPOINT_ENV} is not an address, or {HUB_TOKEN_ENV} holds letters that no token has",
            ) from None

    def _unreachable(self, error: Exception) -> PagemillError:
        reason = getattr(error, "reason", error)
        advice = f"check the network, HTTPS_PROXY and {HUB_ENDPOINT_ENV}"
        if isinstance(reason, ssl.SSLCertVerificationError):
            advice = (
                "set SSL_CERT_FILE to its authority's certificate (in a cluster by pod.env and a volume of the pod's)"
            )
        return PagemillError(FailureReason.HUB_UNREACHABLE, f"{self.endpoint} can't be reached ({reason}): {advice}")

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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The token goes along on the hub itself (a renamed repository answers with a redirect), and to nobody else."""

    def redirect_request(self, req: urllib.request.Request, *args: Any) -> urllib.request.Request | None:
        new = super().redirect_request(req, *args)
        token = req.unredirected_hdrs.get("Authorization")
        if new and token and _origin(new.full_url) == _origin(req.full_url):
            new.add_unredirected_header("Authorization", token)
        return new


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _file(entry: Mapping[str, Any]) -> HubFile:
    lfs = entry.get("lfs") or {}
    size = lfs.get("size", entry.get("size"))
    name = str(entry["rfilename"])
    if name.startswith("/") or ".." in name.split("/") or not name.isprintable():
        raise ValueError(f"file name {name!r}")
    return HubFile(name, int(size or 0), lfs.get("sha256"), None if lfs else entry.get("blobId"))


def _wanted(files: tuple[HubFile, ...], repo: str) -> tuple[HubFile, ...]:
    """What serving takes: weights as safetensors (else one GGUF), configs, tokenizer and template; no pickles."""
    top = [file for file in files if "/" not in file.name]
    chosen = [file for file in files if _BELOW.fullmatch(file.name) or (file in top and file.name.endswith(_WANTED))]
    if any(_OWN_WEIGHTS.fullmatch(file.name) for file in chosen):
        return tuple(f for f in chosen if not f.name.endswith(".safetensors") or _OWN_WEIGHTS.fullmatch(f.name))
    if any(file.name.endswith(".safetensors") for file in chosen):
        return tuple(chosen)
    ggufs = [file for file in top if file.name.endswith(".gguf")]
    if len(ggufs) == 1:
        return (*chosen, *ggufs)
    if ggufs:
        raise PagemillError(
            FailureReason.MODEL_INVALID,
            f"{repo} has several GGUF files ({', '.join(file.name for file in ggufs)}): fetch one yourself and use file://",
        )
    pickled = any(file.name.endswith((".bin", ".pt", ".pth")) for file in top)
    raise PagemillError(
        FailureReason.UNSAFE_MODEL_FORMAT if pickled else FailureReason.MODEL_NOT_FOUND,
        f"{repo} has no safetensors or GGUF weights" + (", only pickles, which are never read" if pickled else ""),
    )
