"""`pagemill serve` as a contestant: default flags, and what the caller adds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager

from benchmarks.peers import http_server
from benchmarks.peers.contestant import Contestant, Peer
from pagemill.endpoints import READY_PATH

NAME = "pagemill"
# Before torch loads, as `pagemill serve` sets it itself: threads that spin while they wait take the client's core.
_ENVIRON = {"OMP_WAIT_POLICY": "PASSIVE"}


def generating(name: str = NAME, flags: Sequence[str] = ()) -> Peer:
    """`flags` are further ones of `pagemill serve`."""
    return Peer(name, lambda: None, lambda model: _serve(name, model, flags, embeds=False))


def embedding(name: str = NAME, flags: Sequence[str] = ()) -> Peer:
    return Peer(name, lambda: None, lambda model: _serve(name, model, flags, embeds=True), embeds=True)


def _serve(name: str, model: str, flags: Sequence[str], *, embeds: bool) -> AbstractContextManager[Contestant]:
    command = [sys.executable, "-m", "pagemill", "serve", model, "--host", "127.0.0.1", *flags]
    return http_server.serving(
        name,
        lambda port: [*command, "--port", str(port)],
        model=model,
        ready_path=READY_PATH,
        environ=_ENVIRON,
        embeds=embeds,
    )
