"""What tests of the block cache use to run sequences over it without an engine: block size 4, tokens given by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from pagemill_server.engine.kv_cache import Admission, KVCache
from pagemill_server.engine.sequence import Sequence
from tests.server.engine.scripted import make_request

BLOCK = 4
_seq_ids = count()


def make_sequence(
    tokens: Iterable[int] | int, *, salt: str = "", prompt_logprobs: int | None = None, of: Sequence | None = None
) -> Sequence:
    """A sequence of its own request, or another of the request of `of`. A number stands for so many tokens, 0 1 2 …"""
    seq_id = next(_seq_ids)
    if of is not None:
        return Sequence(seq_id, of.request, seed=0, index=1)
    request = make_request(list(range(tokens)) if isinstance(tokens, int) else tokens)
    sampling = replace(request.sampling, prompt_logprobs=prompt_logprobs)
    return Sequence(seq_id, replace(request, cache_salt=salt, sampling=sampling), seed=0)


def admit(cache: KVCache, sequence: Sequence) -> Admission:
    """With what is there already, and room for one more token."""
    admission = cache.admit(sequence, sequence.num_tokens + 1, cache.match(sequence))
    assert admission is not None
    sequence.num_computed_tokens = admission.cached_tokens
    return admission


def compute(cache: KVCache, sequence: Sequence) -> None:
    """A step that succeeded has computed all it has."""
    sequence.num_computed_tokens = sequence.num_tokens
    cache.commit(sequence)
    cache.check_integrity()


def run(cache: KVCache, sequence: Sequence) -> int:
    """Admit, compute and release it; the tokens that needn't be computed."""
    cached = admit(cache, sequence).cached_tokens
    compute(cache, sequence)
    cache.release(sequence)
    cache.check_integrity()
    return cached
