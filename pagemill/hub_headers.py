"""What a hub's model is, from its headers alone: the small files whole, of each weights file only its table.

The folder then looks as after a fetch: the weights are holes of the right size, so that `model_files.inspect` reads it as any other
and a file that is shorter than its own table says is told. Standard library; used by `preflight_command`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from pagemill import gguf_header
from pagemill.failures import FailureReason, PagemillError
from pagemill.hub_api import Hub, HubFile, Revision
from pagemill.model_files import INDEX

_SMALL = re.compile(
    rf"config\.json|generation_config\.json|{re.escape(INDEX)}|modules\.json|sentence_bert_config\.json"
    r"|config_sentence_transformers\.json|\d+_\w+/config\.json"
)
_FIRST = 1 << 18  # bytes: the table of most shards
_FIRST_GGUF = 1 << 22  # with a vocabulary inside
_TABLE_LIMIT = 100_000_000  # bytes; the safetensors reference implementation's own


def fetch_headers(hub: Hub, revision: Revision, folder: Path, moved: Callable[[], None]) -> None:
    """Fill `folder`. Raises PagemillError as `hub.pull` does; `moved` is called after each file."""
    for file in revision.files:
        target = folder / file.name
        if _SMALL.fullmatch(file.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_read(hub, revision, file, 0, file.size))
        elif file.name.endswith(".safetensors"):
            _safetensors(hub, revision, file, target)
        elif file.name.endswith(".gguf"):
            _gguf(hub, revision, file, target)
        moved()


def _safetensors(hub: Hub, revision: Revision, file: HubFile, target: Path) -> None:
    head = _read(hub, revision, file, 0, min(_FIRST, file.size))
    if len(head) >= 8:
        needed = min(8 + min(struct.unpack("<Q", head[:8])[0], _TABLE_LIMIT), file.size)
        if needed > len(head):
            head += _read(hub, revision, file, len(head), needed - len(head))
    _write_hollow(target, head, file.size)


def _gguf(hub: Hub, revision: Revision, file: HubFile, target: Path) -> None:
    """Its header says nowhere how long it is: read on until it is whole."""
    head, step = b"", _FIRST_GGUF
    while len(head) < file.size:
        head += _read(hub, revision, file, len(head), min(step, file.size - len(head)))
        _write_hollow(target, head, len(head))
        step = len(head)
        try:
            gguf_header.read_header(target)
        except gguf_header.CutHeader:
            continue
        except PagemillError:  # whole, but its weights are missing; whatever else is wrong, `inspect` says
            break
    _write_hollow(target, head, file.size)


def _write_hollow(target: Path, head: bytes, size: int) -> None:
    with target.open("wb") as out:
        out.write(head)
        out.truncate(size)


def _read(hub: Hub, revision: Revision, file: HubFile, start: int, length: int) -> bytes:
    """Exactly these bytes; a hub that knows no ranges sends all, of which no more is read."""
    if not length:
        return b""
    with hub.open_file(revision, file, start, start + length - 1) as response:
        try:
            if start and response.status != 206:
                response.read(start)
            found = response.read(length)
        except (OSError, HTTPException):
            found = b""
    if len(found) < length:
        raise PagemillError(
            FailureReason.HUB_UNREACHABLE,
            f"the connection broke after {len(found)} of {length} bytes of {file.name}: it is tried again",
        )
    return found
