"""API keys as an administrator writes them: a name, a digest and what each may. Pure; a key's own words are forgotten at once.

From --api-key, from a YAML document or from a folder's files (`key_file` reads those). Nothing here ever shows a value that could
be a key, whatever is wrong with it: what is raised names places and fields. Both sides read them: the
server's `key_ring` and `cli`, and the operator's `gateway`, which asks for them before it holds a request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import yaml

from pagemill.failures import FailureReason, PagemillError

MOST_KEYS = 1000  # every request is compared with each of them
_MOST = (1 << 31) - 1

_KEY = re.compile(r"[!-~]+")  # what an Authorization header carries as one word
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")  # as a Secret's keys; no slash, which divides a client from its users
_FIELD = re.compile(r"[A-Za-z]{1,30}")  # of what is no field only this is shown: anything else might be a key


class InvalidKeys(PagemillError):
    """Keys that can't be; the message is one line, without a key."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureReason.INVALID_CONFIGURATION, message)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key and what it may; None: no limit."""

    name: str  # in metrics, logs and policies
    digest: bytes = field(repr=False)  # sha256 of the key
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers together
    max_concurrency: int | None = None  # requests between their arrival and the end of their answer
    weight: float | None = None  # of the policy `fair`
    max_priority: int | None = None  # the lowest `priority` that a request may name: lower goes first
    cache_group: str | None = None  # keys of one group share cached prompts


def is_a_key(text: str) -> bool:
    """Whether a client could send it."""
    return _KEY.fullmatch(text) is not None


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def matching(keys: Sequence[ApiKey], given: bytes) -> ApiKey | None:
    """Compares digests in constant time and with every key, so that time tells nothing about them."""
    digest = digest_of(given)
    matches = [hmac.compare_digest(digest, key.digest) for key in keys]
    return keys[matches.index(True)] if given and any(matches) else None


def bearer(authorization: bytes) -> bytes:
    """The key in the value of an Authorization header; empty where there is none."""
    scheme, _, key = authorization.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def of_flags(keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """key1, key2 … in the order in which they were given."""
    named = [(f"key{number}", key.strip()) for number, key in enumerate(keys, start=1)]
    try:
        return distinct([ApiKey(name, _digest(key, name)) for name, key in named])
    except InvalidKeys as error:
        raise InvalidKeys(f"--api-key: {error}") from None


def of_document(content: bytes) -> tuple[ApiKey, ...]:
    """`keys:` with a list. An empty list is no mistake: nobody gets in."""
    document = _yaml(content, "the file")
    if not isinstance(document, Mapping) or set(document) != {"keys"} or not isinstance(document["keys"], list):
        raise InvalidKeys("it must be YAML with a list under `keys:` and nothing beside it")
    return distinct([_of_entry(entry, f"keys[{place}]") for place, entry in enumerate(document["keys"])])


def of_files(files: Sequence[tuple[str, bytes]]) -> tuple[ApiKey, ...]:
    """One key a file, named as the file is. It holds the key alone, or YAML with `key:` and its settings."""
    return distinct([_of_file(name, content) for name, content in files])


def distinct(keys: Sequence[ApiKey]) -> tuple[ApiKey, ...]:
    """Raises InvalidKeys where two share a name or are the same key."""
    if len(keys) > MOST_KEYS:
        raise InvalidKeys(f"there are {len(keys)} keys; at most {MOST_KEYS} are compared with every request")
    for name, count in Counter(key.name for key in keys).items():
        if count > 1:
            raise InvalidKeys(f"two keys are named {name}")
    named: dict[bytes, str] = {}
    for key in keys:
        if (other := named.setdefault(key.digest, key.name)) != key.name:
            raise InvalidKeys(f"{other} and {key.name} are the same key")
    return tuple(keys)


def _of_file(name: str, content: bytes) -> ApiKey:
    if not _name(name):
        raise InvalidKeys("a file's name is its key's, of letters, digits, `.`, `_` and `-`; one of them is not")
    text = _text(content, name).strip()
    if not text:
        raise InvalidKeys(f"{name} is empty")
    if len(text.split()) == 1:
        return ApiKey(name, _digest(text, name))
    document = _yaml(content, name)
    if not isinstance(document, Mapping):
        raise InvalidKeys(f"{name} holds neither a key alone nor YAML with `key:`")
    if "name" in document:
        raise InvalidKeys(f"{name} has a `name`: in a folder the file's name is the key's")
    return _settings(document, name, ApiKey(name, _digest_in(document, name)))


def _of_entry(entry: object, where: str) -> ApiKey:
    if not isinstance(entry, Mapping):
        raise InvalidKeys(f"{where} must have a `name` and a `key`")
    name = entry.get("name")
    if not _name(name):
        raise InvalidKeys(f"{where}.name must be text of letters, digits, `.`, `_` and `-`")
    return _settings(entry, where, ApiKey(name, _digest_in(entry, where)))


def _digest_in(entry: Mapping[Any, Any], where: str) -> bytes:
    if ("key" in entry) == ("keySha256" in entry):
        raise InvalidKeys(f"{where} must have either `key` or `keySha256`")
    if "key" in entry:
        return _digest(entry["key"], f"{where}.key")
    spelt = entry["keySha256"]
    if not isinstance(spelt, str) or not _DIGEST.fullmatch(spelt):
        raise InvalidKeys(f"{where}.keySha256 must be 64 hexadecimal digits in quotes")
    return bytes.fromhex(spelt)


def _digest(key: object, where: str) -> bytes:
    if not isinstance(key, str) or not is_a_key(key):
        raise InvalidKeys(f"{where} must be one word of ASCII text (a number in quotes)")
    return digest_of(key.encode())


def _settings(entry: Mapping[Any, Any], where: str, key: ApiKey) -> ApiKey:
    changes: dict[str, Any] = {}
    for name, value in entry.items():
        if name in ("name", "key", "keySha256"):
            continue
        if name not in _SETTINGS:
            shown = f"`{name}`, which" if isinstance(name, str) and _FIELD.fullmatch(name) else "a field that"
            raise InvalidKeys(f"{where} has {shown} is none of {', '.join(_SETTINGS)}")
        attribute, read, wanted = _SETTINGS[name]
        if not read(value):
            raise InvalidKeys(f"{where}.{name} must be {wanted}")
        changes[attribute] = value
    return replace(key, **changes)


def _whole(least: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def _name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


_COUNT = "a whole number from 1 up"
_SETTINGS: dict[str, tuple[str, Callable[[object], bool], str]] = {
    "requestsPerMinute": ("requests_per_minute", _whole(1), _COUNT),
    "tokensPerMinute": ("tokens_per_minute", _whole(1), _COUNT),
    "maxConcurrency": ("max_concurrency", _whole(1), _COUNT),
    "weight": ("weight", _above_zero, "a number above 0"),
    "maxPriority": ("max_priority", _whole(-_MOST), "a whole number"),
    "cacheGroup": ("cache_group", _name, "a name of letters, digits, `.`, `_` and `-`"),
}


def _yaml(content: bytes, where: str) -> object:
    try:
        return yaml.load(_text(content, where), _Strict)
    except InvalidKeys as error:
        raise InvalidKeys(f"{where}: {error}") from None
    except yaml.MarkedYAMLError as error:
        # The error's own words quote the text, and that is where the keys are.
        line = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise InvalidKeys(f"{where} is not valid YAML{line}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InvalidKeys(f"{where} is not valid YAML") from None


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidKeys(f"{where} is not UTF-8") from None


class _Strict(yaml.SafeLoader):
    """A field that is written twice is a mistake: YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [str(name.value) for name, _ in node.value]
        if len(set(names)) < len(names):
            raise InvalidKeys(f"a field is written twice in what begins on line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)
