"""The keys in force: found, read again, told apart in the cache, weighed."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pagemill_server.api import key_ring
from pagemill_server.api.key_file import MOST_BYTES, KeyFile
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.api.keys import ApiKey, InvalidKeys


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


class TestFind:
    def test_by_what_was_sent(self) -> None:
        ring = KeyRing(["first", "second"])
        assert names((ring.find(b"second") or ring.keys[0],)) == ["key2"]
        for wrong in (b"", b"Second", b"secon", b"second ", b"\xff"):
            assert ring.find(wrong) is None

    @pytest.mark.parametrize("given", [b"sk-1", b"sk-3", b"wrong"])
    def test_every_key_is_compared_in_constant_time(self, given: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        compared: list[bytes] = []

        def watched(one: bytes, other: bytes) -> bool:
            compared.append(other)
            return hmac.compare_digest(one, other)

        monkeypatch.setattr(key_ring, "hmac", SimpleNamespace(compare_digest=watched))
        ring = KeyRing(["sk-1", "sk-2", "sk-3"])
        ring.find(given)
        assert compared == [key.digest for key in ring.keys]

    def test_flags_and_file_together(self, tmp_path: Path) -> None:
        ring = KeyRing(["first"], str(write(tmp_path / "keys.yaml", "a")))
        assert [key.name for key in ring.keys] == ["key1", "a"]

    def test_nothing_given_asks_for_none_and_an_empty_folder_for_one_that_nobody_has(self, tmp_path: Path) -> None:
        assert not KeyRing().required
        ring = KeyRing((), str(tmp_path))
        assert ring.required
        assert ring.find(b"") is ring.find(b"a") is None

    @pytest.mark.parametrize("name", ["key1", "other"])
    def test_a_name_or_key_that_is_there_twice(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "keys.yaml"
        path.write_text(f"keys: [{{name: {name}, key: {'x' if name == 'key1' else 'first'}}}]")
        with pytest.raises(InvalidKeys, match=f"--api-key-file {path}: "):
            KeyRing(["first"], str(path))


class TestFile:
    def test_what_can_not_be_read_is_said_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "folder" / "inner").mkdir(parents=True)
        (tmp_path / "big").write_bytes(b"#" * (MOST_BYTES + 1))
        os.mkfifo(tmp_path / "pipe")
        said = {"absent": "No such file", "folder": "inner is not a file", "big": "larger than", "pipe": "not a file"}
        for name, words in said.items():
            with pytest.raises(InvalidKeys, match=words):
                KeyFile(str(tmp_path / name))

    def test_only_a_change_is_news(self, tmp_path: Path) -> None:
        path = write(tmp_path / "keys.yaml", "a")
        file = KeyFile(str(path))
        assert file.look() is None
        write(path, "a", "b")
        assert names(file.look()) == ["a", "b"]
        assert file.look() is None
        path.write_text(path.read_text() + "# a remark\n")
        assert file.look() is None

    def test_the_same_length_at_the_same_time_is_a_change(self, tmp_path: Path) -> None:
        path = write(tmp_path / "keys.yaml", "a")
        file, old = KeyFile(str(path)), path.stat()
        write(path, "b")
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
        assert names(file.look()) == ["b"]

    def test_a_broken_version_is_said_once_and_changes_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
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

    def test_a_version_that_came_back_after_a_broken_one_is_no_news(self, tmp_path: Path) -> None:
        path = write(tmp_path / "keys.yaml", "a")
        file = KeyFile(str(path))
        path.write_text("")
        assert file.look() is None
        write(path, "a")
        assert file.look() is None
        write(path, "b")
        assert names(file.look()) == ["b"]

    def test_a_mounted_secret(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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

    def test_a_folder_of_ones_own_with_hidden_files(self, tmp_path: Path) -> None:
        (tmp_path / ".swp").write_text("half")
        (tmp_path / "a").write_text("sk-a")
        assert names(KeyFile(str(tmp_path)).keys) == ["a"]


def test_a_removed_key_is_unknown_at_once_and_the_others_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "a", "b")
    ring, changes = KeyRing(["first"], str(path)), asyncio.Event()

    async def remove() -> None:
        following = asyncio.create_task(ring.follow(changes.set, pause=0.001))
        write(path, "b")
        await asyncio.wait_for(changes.wait(), 30)
        following.cancel()

    assert ring.find(b"sk-a")
    asyncio.run(remove())
    assert ring.find(b"sk-a") is None
    assert ring.find(b"sk-b")
    assert ring.find(b"first")


class TestSalt:
    def ring(self, tmp_path: Path, text: str) -> tuple[KeyRing, list[str]]:
        (tmp_path / "keys.yaml").write_text(text)
        ring = KeyRing((), str(tmp_path / "keys.yaml"))
        return ring, [ring.salt(key) for key in ring.keys]

    def test_one_key_alone_needs_none(self, tmp_path: Path) -> None:
        assert self.ring(tmp_path, "keys: [{name: a, key: k1, cacheGroup: g}]")[1] == [""]

    def test_several_have_each_its_own_whatever_the_names(self, tmp_path: Path) -> None:
        _, (a, b) = self.ring(tmp_path, "keys: [{name: a, key: k1}, {name: b, key: k2}]")
        assert len({a, b, ""}) == 3
        _, (renamed, _) = self.ring(tmp_path, "keys: [{name: c, key: k1}, {name: b, key: k2}]")
        assert renamed == a

    def test_a_group_shares_and_is_nobody_elses(self, tmp_path: Path) -> None:
        entries = [
            "name: a, key: k1, cacheGroup: g",
            "name: b, key: k2, cacheGroup: g",
            "name: c, key: k3, cacheGroup: h",
        ]
        text = "keys: [" + ", ".join(f"{{{entry}}}" for entry in [*entries, "name: g, key: g"]) + "]"
        _, (a, b, c, d) = self.ring(tmp_path, text)
        assert a == b
        assert len({a, c, d}) == 3

    def test_a_key_that_is_gone_still_counts(self, tmp_path: Path) -> None:
        """What is cached of its prompts is not for its successor."""
        path = tmp_path / "keys.yaml"
        ring, before = self.ring(tmp_path, "keys: [{name: a, key: k1}]")
        assert before == [""]
        path.write_text("keys: [{name: a, key: k2}]")
        changes = asyncio.Event()

        async def follow() -> None:
            following = asyncio.create_task(ring.follow(changes.set, pause=0.001))
            await asyncio.wait_for(changes.wait(), 30)
            following.cancel()

        asyncio.run(follow())
        assert [key.name for key in ring.keys] == ["a"]
        assert ring.salt(ring.keys[0])
