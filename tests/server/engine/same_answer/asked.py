"""Sixty requests whose answers must be the same bits in whatever company, and how an answer is written down and compared.

Lengths lie around spans of 64 keys, tiles of 256 and the ends of blocks; every sampling setting is there; beginnings are shared.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput, SampledToken, SamplingParams
from pagemill_server.engine.sequence import draw_seed
from pagemill_server.text.grammar import compile, json_object, regex

SHORT = (1, 2, 15, 16, 17, 31, 32, 33, 48, 60, 63, 64, 65)
LONG = (100, 127, 128, 129, 192, 250, 255, 256, 257, 320, 520)
NUM_REQUESTS = 60
ENDS = (2, 258)  # the end of text of the real model, and of the tiny ones
LETTERS = "[a-f]{12,30}[0-9]{3}"
FORMS: dict[str, dict[str, Any]] = {  # compiled, and as a client asks for them
    compile(json_object()): {"response_format": {"type": "json_object"}},
    compile(regex(LETTERS)): {"structured_outputs": {"regex": LETTERS}},
}
OBJECT, LETTERED = FORMS
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "logprobs": 0},
    {"min_p": 0.05, "temperature": 1.5},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"repetition_penalty": 1.3, "top_p": 0.99, "logprobs": None},
    {"logit_bias": ((65, 4.0), (66, -50.0)), "top_k": 100, "top_p": 0.8},
    {"min_tokens": 6, "stop_token_ids": tuple(range(0, 256, 3)), "max_tokens": 24},
    {"n": 3, "temperature": 1.2},
    {"prompt_logprobs": 2},
    {"n": 2, "repetition_penalty": 1.1, "prompt_logprobs": 0, "logprobs": 20},
    {"temperature": 0.0, "frequency_penalty": 1.0, "n": 2},
    {"temperature": 2.0, "max_tokens": 40},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "presence_penalty": -0.5, "logprobs": 5},
    {"max_tokens": 0, "prompt_logprobs": 1},
    {"temperature": 0.0, "max_tokens": 70, "logprobs": 1},
    {"grammar": OBJECT, "ignore_eos": False, "max_tokens": 40, "stop_token_ids": ENDS, "temperature": 1.4},
    {
        "grammar": LETTERED,
        "ignore_eos": False,
        "max_tokens": 60,
        "stop_token_ids": ENDS,
        "n": 2,
        "presence_penalty": 1.0,
    },
)
POOLED = (21, 38, 59)  # whose embedding is wanted, and no token

Answer = tuple[Any, ...]
Answers = dict[tuple[str, int], Answer]  # by request and sequence


def make_requests(
    count: int = NUM_REQUESTS, longest: int = max(LONG), pooled: Iterable[int] = POOLED
) -> list[AddRequest]:
    """Half name a seed, half have what an engine with seed 0 draws for them in this order. One in four or so is long."""
    long = [length for length in LONG if length <= longest]
    lengths = [
        long[number // 4 % len(long)] if number % 4 == 2 else SHORT[number % len(SHORT)] for number in range(count)
    ]
    return [_request(number, length, number in pooled) for number, length in enumerate(lengths)]


def _request(number: int, length: int, pooling: bool) -> AddRequest:
    sampling = {
        "logprobs": 2,
        "max_tokens": 3 + number % 8,
        "seed": draw_seed(0, number) if is_drawn(number) else number % 7,
        "ignore_eos": True,
    }
    return AddRequest(
        f"r{number:02}",
        _prompt(number, length),
        SamplingParams(**(sampling | SETTINGS[number % len(SETTINGS)])),
        arrival=0.0,
        cache_salt="salt" if number % 8 == 5 else "",
        client=f"client{number % 3}",
        priority=number % 4,
        deadline=100.0 - number if number % 5 == 0 else None,
        pooling=pooling,
    )


def _prompt(number: int, length: int) -> tuple[int, ...]:
    """One of four beginnings; every third request ends differently from the others after it."""
    beginning = random.Random(number % 4).choices(range(256), k=length)
    if number % 3 == 0:
        beginning[length * 2 // 3 :] = random.Random(number).choices(range(256), k=length - length * 2 // 3)
    return tuple(beginning)


def is_drawn(number: int) -> bool:
    return number % 2 == 1


def with_drawn_seeds(requests: Iterable[AddRequest]) -> list[AddRequest]:
    """The same, where half leave their seed to the engine."""
    return [
        replace(request, sampling=replace(request.sampling, seed=None)) if is_drawn(number) else request
        for number, request in enumerate(requests)
    ]


def named(requests: Iterable[AddRequest], suffix: str) -> list[AddRequest]:
    return [replace(request, request_id=request.request_id + suffix) for request in requests]


class Record:
    """Takes outputs; each sequence's tokens, log-probabilities, end and vector to the bit."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], list[Answer]] = {}

    def take(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            parts = self._parts.setdefault((output.request_id.partition(" ")[0], output.index), [])
            parts += [("prompt", *_bits(token)) for token in output.prompt_logprobs]
            parts += [("token", *_bits(token)) for token in output.tokens]
            if output.embedding is not None:
                parts.append(("vector", *(value.hex() for value in output.embedding)))
            if output.finish_reason is not None:
                parts.append((output.finish_reason, output.num_prompt_tokens))

    def answers(self, *but: FinishReason) -> Answers:
        """Of all that ended otherwise than `but`; by names up to their first space."""
        return {key: tuple(parts) for key, parts in self._parts.items() if parts[-1][0] not in but}


def _bits(token: SampledToken) -> Answer:
    logprob = None if token.logprob is None else token.logprob.hex()
    return token.token_id, logprob, token.rank, tuple((top.token_id, top.logprob.hex()) for top in token.top)


def check_same(found: Mapping[Any, Answer], expected: Mapping[Any, Answer]) -> None:
    """Raises AssertionError with the first difference, and how many answers differ."""
    assert found.keys() == expected.keys()
    differing = [key for key in expected if found[key] != expected[key]]
    if differing:
        first = differing[0]
        pairs = zip(found[first], expected[first], strict=False)
        place, pair = next(
            ((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]), (-1, ("one is", "shorter"))
        )
        raise AssertionError(
            f"{len(differing)} of {len(expected)} answers differ: {first} at {place}: {pair[0]} instead of {pair[1]}"
        )
