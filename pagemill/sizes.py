"""Sizes in bytes, as people write them: `80MiB`, `2GiB`, `1.5GB`, a plain number. Used by flags and by the plan's table."""

from __future__ import annotations

import re
from fractions import Fraction

from pagemill.failures import FailureReason, PagemillError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}iB": 1024**_power, f"{_letter}i": 1024**_power}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Bytes; raises PagemillError(InvalidConfiguration) for anything that is not a size above zero."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS or (size := int(Fraction(match[1]) * _UNITS[match[2]])) <= 0:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"{text!r} is not a size: write bytes, or 80MiB, 2GiB, 1.5GB"
        )
    return size


def format_size(size: int) -> str:
    """A size for people, in binary units: `93.8 MiB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
