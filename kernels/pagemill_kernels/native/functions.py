"""The C functions of native.h, and the types in which ctypes hands over their arguments and takes their results.

Knows neither what they compute nor the structures that some pointers lead to: those stand with whoever fills them. `library`
declares them all once in each library that it loads; who calls one takes it from there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Signature(NamedTuple):
    """As ctypes has it: `restype` and `argtypes`. Every pointer but a text is a c_void_p."""

    result: type | None
    arguments: tuple[type, ...] = ()


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p

FUNCTIONS: Mapping[str, Signature] = {
    "pm_isa": Signature(ctypes.c_char_p),
    "pm_let_go_of_files": Signature(None),
    "pm_pool_new": Signature(_POINTER, (_INT,)),
    "pm_pool_free": Signature(None, (_POINTER,)),
    "pm_matrix_new": Signature(_POINTER, (_POINTER, _INT, _INT, _INT, _POINTER, _INT, _INT, _INT)),
    "pm_matrix_free": Signature(None, (_POINTER,)),
    "pm_matrix_bytes": Signature(_LONG, (_POINTER,)),
    "pm_matrix_row": Signature(None, (_POINTER, _INT, _POINTER)),
    "pm_product": Signature(None, (*(_POINTER,) * 3, _INT, _POINTER, _INT, _INT, _POINTER)),
    "pm_linear": Signature(None, (*(_POINTER,) * 3, _INT, _POINTER, _POINTER)),
    "pm_attention": Signature(_INT, (_POINTER,) * 8),
    "pm_decoder_new": Signature(_POINTER, (_POINTER,)),
    "pm_decoder_free": Signature(None, (_POINTER,)),
    "pm_decoder_step": Signature(_INT, (*(_POINTER,) * 6, _INT, _POINTER)),
    "pm_decoder_logits": Signature(_INT, (*(_POINTER,) * 3, _INT, _POINTER)),
    "pm_decoder_workspace": Signature(_LONG, (_POINTER,)),
    "pm_decoder_measure": Signature(None, (_POINTER,) * 2),
    "pm_likeliest": Signature(None, (_POINTER, _INT, _INT, _POINTER)),
    "pm_encoder_new": Signature(_POINTER, (_POINTER,)),
    "pm_encoder_free": Signature(None, (_POINTER,)),
    "pm_encoder_forward": Signature(_INT, (*(_POINTER,) * 5, _INT, _POINTER)),
    "pm_encoder_workspace": Signature(_LONG, (_POINTER,)),
}


def declare(library: ctypes.CDLL, names: Iterable[str] = FUNCTIONS) -> None:
    """Gives the library's functions their types; AttributeError where it lacks one of `names`."""
    for name in names:
        function = getattr(library, name)  # the library keeps it: who asks for it by its name gets this one
        function.restype, function.argtypes = FUNCTIONS[name]
