"""What a `SamplingParams` may say: every bound once, for the HTTP door and for Python users alike. Pure.

`validated` takes what a user wrote (lists, a single stop string, a dict of biases) to what the engine trusts, or raises
InvalidSampling, a ValueError that names the field and its bounds. Called by `api/prepare` and by `LLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.engine.request import SamplingParams, StructuredOutputsParams

MAX_N = 128  # sequences of a request, as OpenAI
MAX_STOPS = 16  # OpenAI allows 4, vLLM any number; each costs a search per token
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKENS = 128
MAX_BIASES = 1024
MAX_LOGPROBS = 20  # alternatives beside each token, as OpenAI
MOST_TOKENS = 2**31 - 1  # what a count can be at all; lengths are the model's to bound


def validated(params: SamplingParams, vocab_size: int) -> SamplingParams:
    """The same settings with tuples where tuples belong. `vocab_size` is the model's embedding's, not the tokenizer's."""
    checked = {field.name: _CHECKS[field.name](field.name, getattr(params, field.name)) for field in fields(params)}
    _check_ids("logit_bias", [token_id for token_id, _ in checked["logit_bias"]], vocab_size)
    _check_ids("stop_token_ids", checked["stop_token_ids"], vocab_size)
    made = replace(params, **checked)
    if made.min_tokens > made.max_tokens:
        raise InvalidSampling("min_tokens", f"is {made.min_tokens}, more than max_tokens, which is {made.max_tokens}")
    return made


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within bounds, which belong to them unless `above` says otherwise of the lower one."""

    low: float
    high: float
    whole: bool = False
    above: bool = False  # the lower bound itself is out
    optional: bool = False  # None is taken

    def __call__(self, name: str, value: Any) -> Any:
        if value is None and self.optional:
            return None
        number = isinstance(value, int) or (not self.whole and isinstance(value, float))
        if isinstance(value, bool) or not number or not self._holds(value):
            raise InvalidSampling(name, f"must be {self._spelled()}, not {str(value)[:50]}")
        return value if self.whole else float(value)

    def _holds(self, value: float) -> bool:
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def _spelled(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return (
            f"{kind} {'above' if self.above else 'from'} {self.low} {'and at most' if self.above else 'to'} {self.high}"
        )


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSampling(name, f"must be true or false, not {str(value)[:50]}")
    return value


def _top_k(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= MOST_TOKENS:
        raise InvalidSampling(name, f"must be -1, or a whole number from 0 to {MOST_TOKENS}, not {str(value)[:50]}")
    return max(0, value)


def _structured(name: str, value: Any) -> StructuredOutputsParams | None:
    if value is not None and not isinstance(value, StructuredOutputsParams):
        raise InvalidSampling(name, "must be StructuredOutputsParams")
    return value


def _grammar(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidSampling(name, "must be the text of a compiled grammar, or empty")
    return value


def _stops(name: str, value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else _listed(name, value)
    if len(stops) > MAX_STOPS:
        raise InvalidSampling(name, f"has {len(stops)} strings; at most {MAX_STOPS}")
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise InvalidSampling(name, f"must be strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def _stop_tokens(name: str, value: Any) -> tuple[Any, ...]:
    ids = _listed(name, value)
    if len(ids) > MAX_STOP_TOKENS:
        raise InvalidSampling(name, f"has {len(ids)} ids; at most {MAX_STOP_TOKENS}")
    return ids


def _biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """A mapping from token id, a number or its digits, or pairs of the two; in the order of the ids."""
    if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
        raise InvalidSampling(name, "must map token ids to numbers")
    pairs = _listed(name, value.items() if isinstance(value, Mapping) else value)
    if len(pairs) > MAX_BIASES:
        raise InvalidSampling(name, f"has {len(pairs)} entries; at most {MAX_BIASES}")
    made: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidSampling(name, "must map token ids to numbers")
        token_id = _token_id(name, pair[0])
        if token_id in made:
            raise InvalidSampling(name, f"names token id {token_id} twice")
        made[token_id] = _BIAS(name, pair[1])
    return tuple(sorted(made.items()))


def _token_id(name: str, key: Any) -> int:
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    raise InvalidSampling(name, f"has the key {str(key)[:50]!r}, which is no token id")


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise InvalidSampling(name, "must be a list")
    return tuple(value)


def _check_ids(name: str, ids: Iterable[Any], vocab_size: int) -> None:
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise InvalidSampling(name, f"holds {str(token_id)[:50]!r}, which is no token id")
        if not 0 <= token_id < vocab_size:
            raise InvalidSampling(name, f"names token id {token_id}; this model has 0 to {vocab_size - 1}")


def bounds(name: str) -> Number | None:
    """What a setting that is one number may be; None for any other name."""
    check = _CHECKS.get(name)
    return check if isinstance(check, Number) else None


_BIAS = Number(-100, 100)
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1, above=True),
    "top_k": _top_k,
    "min_p": Number(0, 1),
    "frequency_penalty": Number(-2, 2),
    "presence_penalty": Number(-2, 2),
    "repetition_penalty": Number(0, 10, above=True),
    "logit_bias": _biases,
    "seed": Number(-(2**63), 2**63 - 1, whole=True, optional=True),
    "n": Number(1, MAX_N, whole=True),
    "max_tokens": Number(0, MOST_TOKENS, whole=True),  # 0: the prompt's log-probabilities are all that is wanted
    "min_tokens": Number(0, MOST_TOKENS, whole=True),
    "stop": _stops,
    "stop_token_ids": _stop_tokens,
    "ignore_eos": _truth,
    "logprobs": Number(0, MAX_LOGPROBS, whole=True, optional=True),
    "prompt_logprobs": Number(0, MAX_LOGPROBS, whole=True, optional=True),
    "structured_outputs": _structured,
    "grammar": _grammar,
}
