"""Keys as an administrator writes them: what is read, and that no mistake makes the server show one."""

from __future__ import annotations

import hashlib
import hmac
from types import SimpleNamespace

import pytest

from pagemill import keys
from pagemill.keys import ApiKey, InvalidKeys

SECRET = "sk-Very.Secret-123"
DIGEST = hashlib.sha256(SECRET.encode()).digest()


def document(*entries: str) -> bytes:
    return ("keys:\n" + "".join(f"- {{{entry}}}\n" for entry in entries)).encode()


def test_flags_are_named_by_their_order() -> None:
    first, second = keys.of_flags(["a", f" {SECRET} "])
    assert (first.name, second.name) == ("key1", "key2")
    assert second.digest == DIGEST


def test_a_document() -> None:
    text = f"""
    keys:
      - name: team-a
        key: {SECRET}
        requestsPerMinute: 60
        tokensPerMinute: 100000
        maxConcurrency: 8
        weight: 2
        maxPriority: -1
        cacheGroup: all
      - name: team-b
        keySha256: "{hashlib.sha256(b"b").hexdigest().upper()}"
    """
    assert keys.of_document(text.encode()) == (
        ApiKey("team-a", DIGEST, 60, 100_000, 8, 2, -1, "all"),
        ApiKey("team-b", hashlib.sha256(b"b").digest()),
    )


def test_a_document_without_a_key_opens_nothing_and_is_no_mistake() -> None:
    assert keys.of_document(b"keys: []") == ()
    assert keys.of_files([]) == ()


def test_files() -> None:
    files = [("team-a", f"{SECRET}\n".encode()), ("team-b", b"\xef\xbb\xbfkey: b:2\nweight: 0.5\n")]
    assert keys.of_files(files) == (
        ApiKey("team-a", DIGEST),
        ApiKey("team-b", hashlib.sha256(b"b:2").digest(), weight=0.5),
    )


MISTAKES = [
    ("", "a list under `keys:`"),  # cut off by whoever is writing it
    (SECRET, "a list under `keys:`"),
    (f"keys: {{a: {SECRET}}}", "a list under `keys:`"),
    (f"keys: []\n{SECRET}: 1", "nothing beside it"),
    (f"keys: [{SECRET}]", "keys[0] must have a `name`"),
    (f"keys: [{{name: '{SECRET}/', key: a}}]", "keys[0].name"),
    (f"keys: [{{key: {SECRET}}}]", "keys[0].name"),
    ("keys: [{name: 7, key: a}]", "keys[0].name"),
    ("keys: [{name: a}]", "either `key` or `keySha256`"),
    (f"keys: [{{name: a, key: {SECRET}, keySha256: b}}]", "either `key` or `keySha256`"),
    ("keys: [{name: a, key: ''}]", "keys[0].key must be one word"),
    ("keys: [{name: a, key: 123456789}]", "a number in quotes"),
    ("keys: [{name: a, key: 2024-99-99}]", "not valid YAML"),
    (f"keys: [{{name: a, key: 'two {SECRET}'}}]", "one word"),
    ('keys: [{name: a, key: "\\ud800"}]', "one word"),
    (f"keys: [{{name: a, keySha256: {SECRET}}}]", "64 hexadecimal digits"),
    (f"keys: [{{name: a, key: {SECRET}, requestPerMinute: 1}}]", "`requestPerMinute`, which is none of"),
    (f"keys: [{{name: a, key: b, {SECRET}: 1}}]", "a field that is none of"),
    ("keys: [{name: a, key: b, requestsPerMinute: 0}]", "requestsPerMinute must be a whole number from 1 up"),
    ("keys: [{name: a, key: b, tokensPerMinute: 1.5}]", "tokensPerMinute must be"),
    ("keys: [{name: a, key: b, tokensPerMinute: null}]", "tokensPerMinute must be"),
    ("keys: [{name: a, key: b, maxConcurrency: true}]", "maxConcurrency must be"),
    ("keys: [{name: a, key: b, weight: 0}]", "weight must be a number above 0"),
    ("keys: [{name: a, key: b, weight: .inf}]", "weight must be"),
    ("keys: [{name: a, key: b, weight: .nan}]", "weight must be"),
    ("keys: [{name: a, key: b, maxPriority: low}]", "maxPriority must be"),
    ("keys: [{name: a, key: b, cacheGroup: ''}]", "cacheGroup must be"),
    (f"keys: [{{name: a, key: {SECRET}}}, {{name: a, key: b}}]", "two keys are named a"),
    (f"keys: [{{name: a, key: {SECRET}}}, {{name: b, key: {SECRET}}}]", "a and b are the same key"),
    (f"keys:\n- name: a\n  key: {SECRET}\n  key: {SECRET}", "written twice in what begins on line 2"),
    (f"keys:\n- name: a\n  key: *{SECRET}", "not valid YAML (line 3)"),
    (f"keys: [{{? [{SECRET}] : 1}}]", "not valid YAML"),
    (f"keys: [{{? [{SECRET}, a] : 1, ? [b] : 2}}]", "not valid YAML"),
    (f"keys: !!python/object:{SECRET} 1", "not valid YAML"),
    (f"keys: {'[' * 2000}", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_one_line_without_a_key(text: str, said: str) -> None:
    with pytest.raises(InvalidKeys) as caught:
        keys.of_document(text.encode())
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a", b" \n", "a is empty"),
        ("a", b"two words", "neither a key alone nor YAML"),
        ("a", b"\xff\xfe", "not UTF-8"),
        ("a", b"name: b\nkey: c", "the file's name is the key's"),
        ("a", b"weight: 2\nfoo: 1", "either `key`"),
        ("a/b", b"c", "a file's name"),
    ],
)
def test_a_mistake_in_a_folder(name: str, content: bytes, said: str) -> None:
    with pytest.raises(InvalidKeys) as caught:
        keys.of_files([(name, content)])
    assert said in str(caught.value)


def test_not_more_than_are_compared() -> None:
    entries = [f"name: k{number}, key: s{number}" for number in range(keys.MOST_KEYS + 1)]
    assert len(keys.of_document(document(*entries[:-1]))) == keys.MOST_KEYS
    with pytest.raises(InvalidKeys, match="1001 keys"):
        keys.of_document(document(*entries))


def test_nothing_of_a_key_is_shown_by_what_holds_it() -> None:
    (key,) = keys.of_flags([SECRET])
    assert SECRET not in repr(key)
    assert str(DIGEST) not in repr(key)
    assert DIGEST.hex() not in repr(key)


def test_a_flag_that_no_client_could_send() -> None:
    for wrong in ("two words", "schlüssel", ""):
        with pytest.raises(InvalidKeys, match="--api-key: key1 must be one word"):
            keys.of_flags([wrong])
    with pytest.raises(InvalidKeys, match="--api-key: key1 and key2 are the same key"):
        keys.of_flags(["a", "a"])


@pytest.mark.parametrize("given", [b"sk-1", b"sk-3", b"wrong"])
def test_every_key_is_compared_in_constant_time(given: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "hmac", SimpleNamespace(compare_digest=watched))
    known = keys.of_flags(["sk-1", "sk-2", "sk-3"])
    keys.matching(known, given)
    assert compared == [key.digest for key in known]


@pytest.mark.parametrize(
    ("header", "key"),
    [(b"Bearer sk-1", b"sk-1"), (b"bearer  sk-1 ", b"sk-1"), (b"Basic sk-1", b""), (b"sk-1", b""), (b"", b"")],
)
def test_a_key_comes_as_bearer(header: bytes, key: bytes) -> None:
    assert keys.bearer(header) == key
