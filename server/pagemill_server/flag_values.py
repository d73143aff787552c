"""How flags' words become values: each raises argparse's error, with one line that says what the flag takes. Used by `flags`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from urllib.parse import urlsplit

from pagemill.failures import PagemillError
from pagemill.sizes import parse_size

_TRACES_PATH = "/v1/traces"
MOST_GIB = 1 << 20  # far beyond any machine


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if text.lstrip("-").isdecimal() else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} {f'to {most}' if most else 'up'}"
            )
        return number

    return read


def seconds(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = _number(text)
        if not least <= number < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} up")
        return number

    return read


def above_zero(text: str) -> float:
    if not 0 < (number := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def weight(text: str) -> tuple[str, float]:
    client, equals, weight = text.rpartition("=")
    if not (equals and client.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not CLIENT=WEIGHT")
    return client, above_zero(weight)


def share(text: str) -> float:
    if not 0 < (number := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and at most 1")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def size(text: str) -> int:
    try:
        return parse_size(text)
    except PagemillError as error:
        raise argparse.ArgumentTypeError(error.failure.message) from None


def gib(text: str) -> int:
    """GiB → bytes."""
    if not 0 <= (number := _number(text)) <= MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GiB from 0 to {MOST_GIB}")
    return int(number * 1024**3)


def words(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def collector(text: str) -> str:
    """Where spans go. A URL without a path is a collector's base, below which OpenTelemetry has a path for traces."""
    try:
        url = urlsplit(text)
        sound = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and not url.fragment
    except ValueError:
        sound = False
    if not sound or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as http://collector:4318")
    return text if url.path.strip("/") else url._replace(path=_TRACES_PATH).geturl()


GENERATION_SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_new_tokens",
)


def generation(text: str) -> tuple[tuple[str, float], ...]:
    """A JSON object of generation settings; their bounds are `engine/params`'."""
    try:
        body = json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON") from None
    if not isinstance(body, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    for name, value in body.items():
        if name not in GENERATION_SETTINGS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(GENERATION_SETTINGS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise argparse.ArgumentTypeError(f"{name} must be a number, not {value!r}")
    return tuple(body.items())
