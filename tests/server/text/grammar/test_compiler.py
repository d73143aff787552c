"""The compiler: what it keeps, who may use it at once, hostile grammars, and models whose answers can't be constrained."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from pagemill_server.text.grammar import (
    Grammar,
    GrammarCompiler,
    InvalidGrammar,
    cfg,
    choice,
    compile,
    json_schema,
    regex,
)
from pagemill_server.text.grammar.compiler import MAX_KEPT
from tests.server.text.grammar.constraining import ENDS, VOCAB, compiler, ids_of


def allowed(matcher: Any, size: int = VOCAB) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    assert not bits[size:].any()
    return [int(token) for token in bits.nonzero()[0]]


def test_every_end_is_allowed_where_the_grammar_accepts_and_nowhere_else() -> None:
    matcher = compiler().matcher(compile(regex("ab?")))
    assert allowed(matcher) == [*b"a"]
    matcher.consume_tokens(ids_of("a"))
    assert allowed(matcher) == sorted([*b"b", *ENDS])
    matcher.consume_tokens(ids_of("b"))
    assert allowed(matcher) == sorted(ENDS)


def test_ids_that_no_token_has_are_never_allowed() -> None:
    assert max(allowed(compiler().matcher(compile(regex("(?s:.*)"))))) < 260 < VOCAB


def test_a_copy_leaves_the_others_at_their_place() -> None:
    text = compile(choice(["ab", "cd"]))
    first, second = compiler().matcher(text), compiler().matcher(text)
    first.consume_tokens(ids_of("a"))
    assert allowed(second) == [*b"ac"]
    assert allowed(compiler().matcher(text)) == [*b"ac"]


def test_what_is_kept_is_bounded_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiler()
    compiled: list[str] = []
    compile_one = made._compile
    monkeypatch.setattr(made, "_compile", lambda text: (compiled.append(text), compile_one(text))[1])
    texts = [compile(choice([f"text {number}"])) for number in range(MAX_KEPT + 1)]
    for text in (*texts, texts[-1], texts[0]):
        made.check(text)
    assert compiled == [*texts, texts[0]]
    assert len(made._kept) == MAX_KEPT
    made.forget(texts[0])
    made.forget("nobody's")
    made.check(texts[0])
    assert compiled == [*texts, texts[0], texts[0]]


def test_threads_may_share_it() -> None:
    texts = [compile(choice([f"{number} {place}" for place in range(20)])) for number in range(4)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: allowed(compiler().matcher(texts[number % 4])), range(200)))
    assert found == [[*f"{number % 4}".encode()] for number in range(200)]


def linked(count: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": defs | {f"a{count}": {"type": "string"}}}


CHAINS = {
    "references": lambda: json_schema(linked(3500)),
    "rules": lambda: cfg("start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(4000)) + 'a4000: "x"'),
    "terminals": lambda: cfg("start: A0\n" + "".join(f"A{i}: A{i + 1}\n" for i in range(4000)) + 'A4000: "x"'),
    "brackets": lambda: cfg("start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    "groups": lambda: regex("(" * 4000 + "a" + ")" * 4000),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_does_not_overflow_the_stack(name: str) -> None:
    """Each of the first three ended the process on an ordinary stack."""
    taken_or_refused(CHAINS[name]())


@pytest.mark.parametrize(
    "grammar",
    [
        regex("(a{1000}){1000}"),
        regex("((a|b){1,1000}c){1,1000}"),
        regex("(a|b)*a(a|b){30}"),
        regex("a?" * 2000 + "a" * 2000),
        regex(r"(((a*)*)*)*b"),
        json_schema({"type": "array", "items": {"type": "integer"}, "minItems": 100_000}),
        json_schema({"type": "string", "minLength": 20_000}),
        cfg("start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "x"'),
        cfg("start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60: "x"'),
        cfg('start: start start | "a" | ""'),
        cfg('start: ((("a"{1000}){1000}){1000}){1000}'),
    ],
)
def test_what_blows_up_is_refused_or_stays_small(grammar: Grammar) -> None:
    taken_or_refused(grammar)


def taken_or_refused(grammar: Grammar) -> None:
    """In another thread, as the server does."""
    ended: list[object] = []

    def check() -> None:
        try:
            ended.append(compiler().check(compile(grammar)))
        except InvalidGrammar as refused:
            ended.append(refused)

    thread = threading.Thread(target=check)
    thread.start()
    thread.join(60)
    assert len(ended) == 1


def test_a_model_without_an_end_has_no_grammars() -> None:
    with pytest.raises(InvalidGrammar, match="no token that ends"):
        GrammarCompiler(compiler()._backend, (), VOCAB).check(compile(choice(["a"])))


def test_a_tokenizer_that_cannot_be_taken_is_refused_and_no_crash() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(InvalidGrammar, match="can't be held to a grammar"):
        GrammarCompiler(backend, (1,), 2).check(compile(choice(["a"])))


def test_a_tokenizer_with_more_than_the_model_has_is_taken() -> None:
    made = GrammarCompiler(compiler()._backend, ENDS, 259)
    assert allowed(made.matcher(compile(choice(["a"]))), 260) == [*b"a"]
