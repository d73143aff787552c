"""Whether a live object still reads as we wrote it, given what an API server does to what it is sent.

It adds defaults and other writers' fields, drops what is empty, and writes quantities its own way (1024Mi becomes 1Gi). Whatever we
say must be there; what we don't say is not ours. Pure; called by `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

_QUANTITIES = (
    "limits",
    "requests",
    "sizeLimit",
    "divisor",
)  # the fields whose values (or whose members' values) are quantities
_KEYS = ("name", "mountPath", "uid", "key")  # by which elements of a list are told apart, as server-side apply does
_ATOMIC = ("selector", "nodeSelector")  # maps that have one owner: what a hand added to them is a change of ours
_SUFFIXES: dict[str, Decimal | int] = {
    "": 1,
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
_SUFFIXES |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}


def reads_as_written(wanted: Any, live: Any, *, quantity: bool = False) -> bool:
    """Every field of `wanted` is in `live` with the same value."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            _same_members(value, live.get(name), name)
            and reads_as_written(value, live.get(name), quantity=quantity or name in _QUANTITIES)
            for name, value in wanted.items()
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return _same_list(wanted, [] if live is None else live, quantity)
    if live is None:
        return wanted in (None, "", 0, False)
    if quantity and wanted != live:
        number = amount(wanted)
        return number is not None and number == amount(live)
    return bool(wanted == live)


def _same_members(wanted: Any, live: Any, name: str) -> bool:
    """Where a map has one owner, it must have no other members either."""
    return name not in _ATOMIC or not isinstance(live, Mapping) or set(live) == set(wanted or ())


def _same_list(wanted: Sequence[Any], live: Any, quantity: bool) -> bool:
    if not isinstance(live, Sequence) or isinstance(live, str):
        return False
    key = next((name for name in _KEYS if _keyed_by(name, wanted) and _keyed_by(name, live)), None)
    if key is None:
        return len(wanted) == len(live) and all(
            reads_as_written(one, other, quantity=quantity) for one, other in zip(wanted, live, strict=True)
        )
    by_key = {element[key]: element for element in live}
    return all(reads_as_written(one, by_key.get(one[key], _MISSING), quantity=quantity) for one in wanted)


_MISSING = object()


def _keyed_by(name: str, elements: Sequence[Any]) -> bool:
    if not all(isinstance(element, Mapping) and isinstance(element.get(name), str) for element in elements):
        return False
    return bool(elements) and len({element[name] for element in elements}) == len(elements)


def amount(text: Any) -> Decimal | None:
    """The number that a quantity stands for; None where it is none."""
    number = str(text)
    digits = number.rstrip("".join(_SUFFIXES))
    try:
        return Decimal(digits) * _SUFFIXES[number[len(digits) :]]
    except (InvalidOperation, KeyError):
        return None
