"""A hub on this machine that speaks the Hugging Face hub's API over real HTTP, and can behave as badly as networks do.

Lists a revision with sizes and checksums (sha256 for large files, git blob ids for the others), serves files with ranges, and
does what its fields say: break off, corrupt, redirect, gate, ignore ranges. Every request is logged. Used by the tests of `hub`.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE = (".safetensors", ".gguf", ".bin")


@dataclass
class Seen:
    """One request."""

    path: str
    headers: Mapping[str, str]


@dataclass
class HubServer:
    """What the hub holds and how it behaves; change the fields at any time."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = "c" * 40
    former: tuple[str, ...] = ()  # commits that can still be asked for
    token: str | None = None  # asked for when set
    refusal: int = 401  # what a request without it gets
    breaks: dict[str, int] = field(default_factory=dict)  # file -> bytes after which the connection closes, once
    corrupt: set[str] = field(default_factory=set)  # files whose first byte arrives changed
    chunked: bool = False  # without Content-Length
    ranges: bool = True
    storage: str | None = None  # files are answered with a redirect to this address
    renamed: dict[str, str] = field(default_factory=dict)  # repo -> the name it has now (307, as the hub answers)
    answer: tuple[int, bytes] | None = None  # instead of everything
    stall: threading.Event | None = None  # a break waits for it, so that a test can end the client in mid-file
    seen: list[Seen] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)  # bytes of each file
    url: str = ""

    def fetched(self) -> Counter[str]:
        """How often each file was asked for."""
        return Counter(seen.path.rpartition("/")[2] for seen in self.seen if "/resolve/" in seen.path)

    def listing(self, repo: str) -> dict[str, Any]:
        return {"sha": self.commit, "siblings": [_sibling(name, data) for name, data in self.repos[repo].items()]}


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
    if name.endswith(LARGE):
        entry["blobId"] = "0" * 40  # of the pointer file
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry


@contextmanager
def serve(hub: HubServer, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> Iterator[HubServer]:
    """Run the hub on a free port of this machine, at an address of it; with a `context`, over TLS."""

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer((host, 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    hub.url = f"{'http' if context is None else 'https'}://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass  # the log is `seen`

    def do_GET(self) -> None:
        hub, path = self.state, urllib.parse.unquote(self.path)
        hub.seen.append(Seen(path, dict(self.headers)))
        if hub.answer is not None:
            return self._reply(*hub.answer)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._reply(hub.refusal, b"{}")
        for old, new in hub.renamed.items():
            if path.startswith((f"/api/models/{old}/", f"/{old}/")):
                return self._redirect(307, path.replace(old, new, 1))
        if path.startswith("/api/models/"):
            return self._list(path)
        repo, _, rest = path[1:].partition("/resolve/")
        name = rest.partition("/")[2]
        if name not in hub.repos.get(repo, {}):
            return self._reply(404, b"{}")
        if hub.storage:
            return self._redirect(302, f"{hub.storage}{path}?signature=abc")
        return self._file(name.partition("?")[0], hub.repos[repo][name])

    def _list(self, path: str) -> None:
        repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        known = ("main", "v1", "refs/pr/1", self.state.commit, *self.state.former)
        if repo not in self.state.repos or revision.removesuffix("?blobs=true") not in known:
            return self._reply(404, b'{"error": "Repository not found"}')
        listing = self.state.listing(repo)
        asked = revision.removesuffix("?blobs=true")
        commit = asked if asked in self.state.former else self.state.commit
        return self._reply(200, json.dumps({**listing, "sha": commit}).encode())

    def _file(self, name: str, data: bytes) -> None:
        hub, start, size = self.state, 0, len(data)
        ranged = bool(asked := self.headers.get("Range", "")) and hub.ranges
        if name in hub.corrupt:
            data = bytes([data[0] ^ 1]) + data[1:]
        if ranged:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, data = int(first), data[: int(last) + 1] if last else data
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{size}")
        if hub.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        stop = hub.breaks.pop(name, None)
        part = data[start:stop]
        hub.sent[name] += len(part)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if hub.chunked else part)
        if stop is not None:
            self.wfile.flush()
            if hub.stall:
                hub.stall.wait(30)
            self.close_connection = True
        elif hub.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _redirect(self, code: int, to: str) -> None:
        self.send_response(code)
        self.send_header("Location", to)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _reply(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
