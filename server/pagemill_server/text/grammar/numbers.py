"""Numbers in a JSON schema that llguidance, which counts in doubles, would take for their neighbours. Pure.

A bound may be rounded towards what it allows, never away from it; any other number must be the one that was written. Called by
`schemas`, which has bounded the depth. Raises InvalidGrammar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pagemill_server.text.grammar.errors import InvalidGrammar

_WHOLE = 2**53  # up to it a double has every whole number
_LARGEST = 2**63 - 1  # what a whole number is held under in any case
_SAID_ONLY = ("default", "example", "examples")  # nothing is held to them


def check_numbers(schema: object) -> None:
    for key, number in _whole_numbers("", schema):
        if abs(number) > _WHOLE - 1 and not _is_held(key, number):
            digits = str(number) if abs(number) < 10**40 else "a number"
            raise InvalidGrammar(f"{digits} in {key or 'it'} can't be told from the numbers beside it.")


def _is_held(key: str, number: int) -> bool:
    try:
        double = int(float(number))
    except OverflowError:
        return False
    match key:
        case "minimum":
            return double >= number
        case "maximum":
            return double <= number or number >= _LARGEST
        case "exclusiveMinimum" | "exclusiveMaximum":
            return False  # the next number may be none
    return double == number


def _whole_numbers(key: str, value: object) -> Iterator[tuple[str, int]]:
    """Each with the key that it stands under."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _SAID_ONLY or key == "properties":
                yield from _whole_numbers(name, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _whole_numbers(key, inner)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value
