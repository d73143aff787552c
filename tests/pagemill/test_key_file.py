"""The file of keys: what can be read, what is news, and a Secret as a kubelet mounts it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from pagemill.key_file import MOST_BYTES, KeyFile
from pagemill.keys import ApiKey, InvalidKeys


def write(path: Path, *names: str, more: str = "") -> Path:
    """A document with a key `sk-NAME` for each name."""
    path.write_text("keys:\n" + "".join(f"- {{name: {name}, key: sk-{name}{more}}}\n" for name in names or ()) + "\n")
    return path


def names(keys: tuple[ApiKey, ...] | None) -> list[str] | None:
    return None if keys is None else [key.name for key in keys]


class Secret:
    """A folder as a kubelet mounts a Secret: entries are links into `..data`, a link that is swapped in one move."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._version = 0

    def swap(self, *, links: bool = True, **keys: str) -> None:
        """Without `links` it stands where it does between the kubelet's two moves."""
        self._version += 1
        data = self.folder / f"..2024_{self._version}"
        data.mkdir()
        for name, content in keys.items():
            (data / name).write_text(content)
        (self.folder / "..tmp").symlink_to(data.name)
        os.replace(self.folder / "..tmp", self.folder / "..data")
        if not links:
            return
        for entry in self.folder.iterdir():
            if not entry.name.startswith(".."):
                entry.unlink()
        for name in keys:
            (self.folder / name).symlink_to(Path("..data") / name)


def test_what_can_not_be_read_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "big").write_bytes(b"#" * (MOST_BYTES + 1))
    os.mkfifo(tmp_path / "pipe")
    said = {"absent": "No such file", "folder": "inner is not a file", "big": "larger than", "pipe": "not a file"}
    for name, words in said.items():
        with pytest.raises(InvalidKeys, match=words):
            KeyFile(str(tmp_path / name))


def test_only_a_change_is_news(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "a")
    file = KeyFile(str(path))
    assert file.look() is None
    write(path, "a", "b")
    assert names(file.look()) == ["a", "b"]
    assert file.look() is None
    path.write_text(path.read_text() + "# a remark\n")
    assert file.look() is None


def test_the_same_length_at_the_same_time_is_a_change(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "a")
    file, old = KeyFile(str(path)), path.stat()
    write(path, "b")
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert names(file.look()) == ["b"]


def test_a_broken_version_is_said_once_and_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "keys.yaml", "a")
    file = KeyFile(str(path))
    for breaks in (lambda: write(path, "a", more=", requests: 1"), path.unlink):
        caplog.clear()
        breaks()
        assert file.look() is file.look() is None
        (record,) = caplog.records
        assert "the keys stay as they were" in record.getMessage()
        assert "sk-" not in caplog.text
        assert names(file.keys) == ["a"]
    write(path, "b")
    assert names(file.look()) == ["b"]


def test_a_version_that_came_back_after_a_broken_one_is_no_news(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "a")
    file = KeyFile(str(path))
    path.write_text("")
    assert file.look() is None
    write(path, "a")
    assert file.look() is None
    write(path, "b")
    assert names(file.look()) == ["b"]


def test_a_mounted_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = Secret(tmp_path / "mounted")
    secret.swap(a="sk-a", b="key: sk-b\nmaxConcurrency: 2\n")
    file = KeyFile(str(secret.folder))
    assert names(file.keys) == ["a", "b"]
    assert file.keys[1].max_concurrency == 2
    secret.swap(b="sk-new")
    assert names(file.look()) == ["b"]
    secret.swap(links=False, c="sk-c", d="sk-d")
    assert names(file.look()) == ["c", "d"]
    secret.swap()
    assert names(file.look()) == []
    assert "sk-" not in caplog.text


def test_a_folder_of_ones_own_with_hidden_files(tmp_path: Path) -> None:
    (tmp_path / ".swp").write_text("half")
    (tmp_path / "a").write_text("sk-a")
    assert names(KeyFile(str(tmp_path)).keys) == ["a"]
