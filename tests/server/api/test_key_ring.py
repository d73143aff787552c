"""The keys in force: found, read again, told apart in the cache, weighed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pagemill.keys import ApiKey, InvalidKeys
from pagemill_server.api.key_ring import KeyRing


def write(path: Path, *names: str, more: str = "") -> Path:
    """A document with a key `sk-NAME` for each name."""
    path.write_text("keys:\n" + "".join(f"- {{name: {name}, key: sk-{name}{more}}}\n" for name in names or ()) + "\n")
    return path


def names(keys: tuple[ApiKey, ...] | None) -> list[str] | None:
    return None if keys is None else [key.name for key in keys]


class TestFind:
    def test_by_what_was_sent(self) -> None:
        ring = KeyRing(["first", "second"])
        assert names((ring.find(b"second") or ring.keys[0],)) == ["key2"]
        for wrong in (b"", b"Second", b"secon", b"second ", b"\xff"):
            assert ring.find(wrong) is None

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
