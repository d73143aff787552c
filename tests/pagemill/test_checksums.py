"""A file is what the hub says it is."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from pagemill.checksums import matches

CONTENT = b"weights\n" * 400_000  # more than one read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def test_by_sha256(path: Path) -> None:
    right = hashlib.sha256(CONTENT).hexdigest()
    assert matches(path, size=len(CONTENT), sha256=right, git_sha1=None)
    assert not matches(path, size=len(CONTENT), sha256="0" * 64, git_sha1=None)


def test_by_gits_blob_id(path: Path) -> None:
    right = subprocess.run(["git", "hash-object", path], capture_output=True, text=True, check=True).stdout.strip()
    assert matches(path, size=len(CONTENT), sha256=None, git_sha1=right)
    assert not matches(path, size=len(CONTENT), sha256=None, git_sha1="0" * 40)


def test_by_size_alone_where_nothing_else_is_known(path: Path) -> None:
    assert matches(path, size=len(CONTENT), sha256=None, git_sha1=None)
    right = hashlib.sha256(CONTENT).hexdigest()
    assert not matches(path, size=len(CONTENT) - 1, sha256=right, git_sha1=None)
