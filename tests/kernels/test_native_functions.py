"""What is declared of the native library's functions is what native.h says of them, in every library that is loaded."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

import pytest

from pagemill_kernels.native import build, library
from pagemill_kernels.native.functions import FUNCTIONS, Signature
from tests.kernels.native_libraries import INSTRUCTION_SETS, use_instruction_set

PLAIN: dict[str, type | None] = {
    "void": None,
    "int": ctypes.c_int,
    "std::int64_t": ctypes.c_int64,
    "const char*": ctypes.c_char_p,
}


def type_of(words: str) -> type | None:
    """Of a type as C++ spells it; KeyError for one that no function has had so far."""
    return ctypes.c_void_p if words.endswith("*") and words not in PLAIN else PLAIN[words]


def signatures_of(header: str) -> dict[str, Signature]:
    """The functions of its `extern "C"` block."""
    _, _, rest = re.sub(r"//.*", "", header).partition('extern "C" {')
    block, _, _ = rest.partition("}")
    found: dict[str, Signature] = {}
    for statement in filter(None, (" ".join(words.split()) for words in block.split(";"))):
        matched = re.fullmatch(r"(.+) (\w+)\((.*)\)", statement)
        assert matched, statement
        result, name, arguments = matched.groups()
        types = (type_of(argument.rpartition(" ")[0]) for argument in arguments.split(", ") if argument)
        found[name] = Signature(type_of(result), tuple(one for one in types if one is not None))
    return found


def test_all_of_the_header_and_nothing_else_is_declared() -> None:
    assert signatures_of((build.HERE / "native.h").read_text(encoding="utf-8")) == FUNCTIONS


@pytest.fixture(params=INSTRUCTION_SETS)
def loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    for _ in use_instruction_set(request.param, monkeypatch):
        yield library.loaded()


def test_each_library_that_is_loaded_has_them_with_their_types(loaded: ctypes.CDLL) -> None:
    found = {name: getattr(loaded, name) for name in FUNCTIONS}
    assert {name: Signature(one.restype, one.argtypes) for name, one in found.items()} == FUNCTIONS


def test_who_wants_a_library_where_there_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    with pytest.raises(RuntimeError, match="not built for this processor"):
        library.loaded()
