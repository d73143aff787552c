"""A matcher walked by text: what tests of grammars ask. The tokenizer is the tiny model's, a token a byte."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import AddedToken, Tokenizer

from pagemill_server.text.grammar import Grammar, GrammarCompiler, compile
from tests.server.tiny import END_OF_TEXT, IM_END, write_tokenizer

VOCAB = 300
CALL = 259  # `<call>`, a special token; `</think>` is ordinary text
ENDS = (IM_END, END_OF_TEXT)


@functools.cache
def compiler() -> GrammarCompiler:
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        backend = Tokenizer.from_file(f"{folder}/tokenizer.json")
    backend.add_special_tokens([AddedToken("<call>", special=True, normalized=False)])
    assert backend.token_to_id("<call>") == CALL
    return GrammarCompiler(backend, ENDS, VOCAB)


def ids_of(text: str) -> list[int]:
    """With the special tokens' names as themselves."""
    parts = text.split("<call>")
    ids = list(parts[0].encode())
    for part in parts[1:]:
        ids += [CALL, *part.encode()]
    return ids


def takes(grammar: Grammar, text: str | list[int]) -> bool:
    """Whether the whole text is one that the grammar generates."""
    matcher, ids = compiler().matcher(compile(grammar)), ids_of(text) if isinstance(text, str) else text
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting() and not matcher.is_error())


def begins(grammar: Grammar, text: str) -> bool:
    """Whether some text that begins so is."""
    ids = ids_of(text)
    return bool(compiler().matcher(compile(grammar)).try_consume_tokens(ids) == len(ids))


def walk(grammar: Grammar, seed: int, most: int = 400) -> tuple[list[int], bool]:
    """Random tokens under the masks, and whether they came to an end, which is not among them."""
    matcher, chance, ids = compiler().matcher(compile(grammar)), random.Random(seed), list[int]()
    while len(ids) < most:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), count=VOCAB, bitorder="little")
        assert not matcher.is_error(), matcher.get_error()
        allowed = bits.nonzero()[0].tolist()
        ends = [end for end in allowed if end in ENDS]
        token = chance.choice(ends if ends and chance.random() < 0.3 else allowed)
        if token in ENDS:
            return ids, True
        assert matcher.consume_token(token), matcher.get_error()
        ids.append(token)
    return ids, False
