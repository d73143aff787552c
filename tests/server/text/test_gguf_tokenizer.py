"""Tokenizers from GGUF metadata, against plain-Python statements of what llama.cpp does with the same vocabulary.

Byte-level BPE per `tokenizer.ggml.pre`, SentencePiece by scores; vocabularies made up here, and (marker `model`) SmolLM2's own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect, resolve
from pagemill_server.text.gguf_tokenizer import from_metadata
from pagemill_server.text.tokenizer import ModelTokenizer, load_tokenizer
from tests.server.tiny import IM_END, IM_START, byte_characters
from tests.server.tiny_gguf import write_tiny_gguf

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = (
    "Hello world",
    "In 1969, 3 men; 12345 of 67890!",
    "it's we'll THEY'RE I'D can't",
    "  two  spaces   and\ttabs\n\n\nlines \n end ",
    "naïve café ½ x² Ⅳ ٣٤ ９９ 世界 🌍👩‍👩‍👧",
    "def f(x):\n    return x+1  # 100%\r\n",
    "a" * 50 + "1" * 50,
    "$3.50 <= 10^6 || ~x",
    "",
    " ",
    "\n",
)


def pieces(pattern: str, text: str) -> list[str]:
    """A text cut at every match, what lies between matches included."""
    cut, at = [], 0
    for match in regex.finditer(pattern, text):
        cut += [text[at : match.start()], match.group()]
        at = match.end()
    return [piece for piece in (*cut, text[at:]) if piece]


def merge(symbols: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Join the neighbours of the best rank, leftmost first, until none has one."""
    while True:
        ranks = [rank(a, b) for a, b in pairwise(symbols)]
        known = [value for value in ranks if value is not None]
        if not known:
            return symbols
        at = ranks.index(min(known))
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


def byte_level(metadata: dict[str, Any], cuts: Sequence[str], text: str, whole_first: bool = False) -> list[int]:
    """llama.cpp's byte-level BPE."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(metadata["tokenizer.ggml.merges"])}
    characters = byte_characters()
    parts = [text]
    for pattern in cuts:
        parts = [piece for part in parts for piece in pieces(pattern, part)]
    made = []
    for part in parts:
        spelled = "".join(characters[byte] for byte in part.encode())
        if whole_first and spelled in ids:
            made.append(ids[spelled])
        else:
            made += [ids[token] for token in merge(list(spelled), lambda a, b: ranks.get((a, b)))]
    return made


def made_up(pre: str | None, **entries: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary with some merges, digits and whole words among them."""
    merges = [
        "1 2",
        "12 3",
        "9 9",
        "Ġ 1",
        "Ġ t",
        "h e",
        "Ġt he",
        "l l",
        "ll o",
        "a a",
        "aa aa",
        "Ċ Ċ",
        "Ġ Ġ",
        "' s",
        "T H",
    ]
    tokens = byte_characters() + [merge.replace(" ", "") for merge in merges]
    whole = ["ĠSomething", "Hello"]  # no merges lead there
    tokens += [*whole, "<|begin|>", "<|end|>", "USER:"]
    count = len(tokens)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (count - 3) + [3, 3, 4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": count - 3,
        "tokenizer.ggml.eos_token_id": count - 2,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in entries.items()}


CUTS: dict[str | None, tuple[str, ...]] = {
    "smollm": (r"\p{N}", GPT2),
    "gpt-2": (GPT2,),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    None: (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}


@pytest.mark.parametrize("pre", CUTS, ids=str)
def test_text_is_cut_as_the_files_pre_says(pre: str | None) -> None:
    metadata = made_up(pre)
    backend = from_metadata(metadata, "x.gguf").backend
    rng = random.Random(0)
    alphabet = "aeh l123459 \n\t'sTH.,$é世🌍½"
    texts = [*TEXTS, *("".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(300)), "Hello the Something"]
    for text in texts:
        expected = byte_level(metadata, CUTS[pre], text, whole_first=pre in ("llama-bpe", "llama3"))
        assert backend.encode(text, add_special_tokens=False).ids == expected, text
        assert backend.decode(expected) == text


def test_smollm_reads_digits_one_by_one_where_gpt2_merges_them() -> None:
    for pre, tokens in (("smollm", ["Ġ", "1", "2", "3"]), ("gpt-2", ["Ġ", "123"]), ("llama-bpe", ["Ġ", "123"])):
        backend = from_metadata(made_up(pre), "x.gguf").backend
        assert backend.encode(" 123", add_special_tokens=False).tokens == tokens


@pytest.mark.parametrize(
    ("pre", "entries", "expected"),
    [
        ("smollm", {}, ["a"]),
        ("smollm", {"add_bos_token": True}, ["<|begin|>", "a"]),
        ("llama-bpe", {}, ["<|begin|>", "a"]),
        ("llama-bpe", {"add_bos_token": False}, ["a"]),
        ("smollm", {"add_bos_token": True, "add_eos_token": True}, ["<|begin|>", "a", "<|end|>"]),
        ("smollm", {"add_eos_token": True}, ["a", "<|end|>"]),
        ("smollm", {"add_bos_token": True, "bos_token_id": None}, ["a"]),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(pre: str, entries: dict[str, Any], expected: list[str]) -> None:
    backend = from_metadata(made_up(pre, **entries), "x.gguf").backend
    assert backend.encode("a").tokens == expected
    assert backend.encode("a", add_special_tokens=False).tokens == ["a"]


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    backend = from_metadata(made_up("gpt-2"), "x.gguf").backend
    ids = backend.encode("USER:a<|end|>").ids
    assert [backend.id_to_token(token_id) for token_id in ids] == ["USER:", "a", "<|end|>"]
    assert backend.decode(ids) == "USER:a"
    assert backend.decode(ids, skip_special_tokens=False) == "USER:a<|end|>"


# --- SentencePiece ---

SPACE = "\u2581"
WORDS = {"▁": -1.0, "e": -2.0, "l": -2.5, "h": -2.6, "o": -2.7, "w": -2.8, "r": -2.9, "d": -3.0, "1": -3.1, "2": -3.2}
JOINED = {"he": -4.0, "ll": -4.5, "▁w": -5.0, "or": -5.5, "ell": -6.0, "llo": -6.5, "▁▁": -7.0, "hell": -7.5, "▁wor": -8.0,
          "ello": -8.5, "▁he": -9.0, "▁world": -9.5, "ld": -10.0, "12": -10.5}  # fmt: skip


def spm(**entries: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *JOINED]
    scores = [0.0] * 259 + [*WORDS.values(), *JOINED.values()]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *([1] * (len(tokens) - 259))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in entries.items()}


def sentence_piece(text: str, prefix: bool = True) -> list[str]:
    """SentencePiece's BPE: join the neighbours whose joint piece has the highest score; what is no piece becomes bytes."""
    if not text:
        return []
    known = WORDS | JOINED
    symbols = list((SPACE if prefix else "") + text.replace(" ", SPACE))
    joined = merge(symbols, lambda a, b: -JOINED[a + b] if a + b in JOINED else None)
    return [
        token
        for symbol in joined
        for token in ([symbol] if symbol in known else [f"<0x{byte:02X}>" for byte in symbol.encode()])
    ]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_joins_by_score_and_falls_back_to_bytes(prefix: bool) -> None:
    backend = from_metadata(spm(add_space_prefix=prefix), "x.gguf").backend
    rng = random.Random(1)
    for text in (
        "hello world",
        "hello  world",
        "é🌍\n",
        "12 21",
        *("".join(rng.choices("helowrd 12é", k=12)) for _ in range(300)),
    ):
        encoded = backend.encode(text, add_special_tokens=False)
        assert encoded.tokens == sentence_piece(text, prefix), text
        assert backend.decode(encoded.ids) == text


def test_sentencepiece_adds_bos_unless_told_not_to() -> None:
    assert from_metadata(spm(), "x.gguf").backend.encode("hello").tokens == ["<s>", "▁he", "llo"]
    assert from_metadata(spm(add_bos_token=False), "x.gguf").backend.encode("hello").tokens == ["▁he", "llo"]


def test_sentencepiece_special_tokens_stand_alone() -> None:
    backend = from_metadata(spm(), "x.gguf").backend
    ids = backend.encode("<s>hello</s>", add_special_tokens=False).ids
    assert [ids[0], ids[-1]] == [1, 2]
    assert backend.decode(ids) == "hello"


# --- what is refused ---


@pytest.mark.parametrize("pre", ["tekken", "qwen2", "smaug-bpe", "", "SMOLLM"])
def test_an_unknown_pre_is_refused_and_the_known_are_named(pre: str) -> None:
    with pytest.raises(PagemillError) as caught:
        from_metadata(made_up(pre), "x.gguf")
    assert caught.value.failure.reason == FailureReason.UNSUPPORTED_TOKENIZER
    assert repr(pre) in str(caught.value)
    assert "smollm" in str(caught.value)


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", None])
def test_another_kind_is_refused(kind: str | None) -> None:
    with pytest.raises(PagemillError) as caught:
        from_metadata(made_up("smollm", model=kind), "x.gguf")
    assert caught.value.failure.reason == FailureReason.UNSUPPORTED_TOKENIZER


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": None},
        {"merges": None},
        {"merges": ["a"]},
        {"merges": ["a b c"]},
        {"merges": ["a nosuchtoken"]},
        {"token_type": [1, 2]},
        {"bos_token_id": 10**6},
        {"eos_token_id": -1},
        {"tokens": 7},
    ],
    ids=str,
)
def test_metadata_that_contradict_themselves_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(PagemillError) as caught:
        from_metadata(made_up("smollm", **damage), "x.gguf")
    assert caught.value.failure.reason == FailureReason.MODEL_INVALID
    assert "x.gguf" in str(caught.value)


def test_scores_that_do_not_match_the_tokens_are_refused() -> None:
    with pytest.raises(PagemillError, match="scores"):
        from_metadata(spm(scores=[0.0]), "x.gguf")


def test_a_second_template_for_tools() -> None:
    made = from_metadata(spm() | {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}, "x")
    assert (made.chat_template, made.tool_template) == ("plain", "tools")
    assert from_metadata(spm(), "x").tool_template is None


# --- through files ---


def test_a_gguf_file_brings_its_tokenizer_and_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(inspect(write_tiny_gguf(tmp_path, pre="smollm")))
    assert tokenizer.encode("<|im_start|>12<|im_end|>") == [IM_START, ord("1"), ord("2"), IM_END]
    assert tokenizer.eos_ids == (IM_END,)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template is not None
    assert "im_start" in tokenizer.chat_template


@pytest.fixture(scope="module")
def smollm2() -> tuple[ModelTokenizer, dict[str, Any]]:
    try:
        files = inspect(resolve("HuggingFaceTB/SmolLM2-135M-Instruct", os.environ))
    except PagemillError as error:
        pytest.skip(str(error))
    return load_tokenizer(files), dict(files.gguf_metadata)


@pytest.mark.model
def test_smollm2_reads_text_as_its_own_vocabulary_and_pre_say(smollm2: tuple[ModelTokenizer, dict[str, Any]]) -> None:
    tokenizer, metadata = smollm2
    rng = random.Random(2)
    words = [
        "the",
        "2024",
        " ",
        "\n",
        "naïve",
        "12,500",
        "don't",
        "世界",
        "x=1",
        "🌍",
        "...",
        "HTTP/2",
        "I'll",
        "3.14159",
        "½",
    ]
    texts = [
        *TEXTS,
        *(" ".join(rng.choices(words, k=8)) for _ in range(60)),
        *("".join(rng.choices(words, k=8)) for _ in range(60)),
    ]
    for text in texts:
        assert tokenizer.encode(text) == byte_level(metadata, CUTS["smollm"], text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.model
def test_smollm2_reads_digits_one_by_one(smollm2: tuple[ModelTokenizer, dict[str, Any]]) -> None:
    """What transformers' conversion of the file loses: without the cut, the second space would go with the number."""
    tokenizer, metadata = smollm2
    ids = tokenizer.encode("In  1234")
    assert [tokenizer.backend.id_to_token(token_id) for token_id in ids] == ["In", "ĠĠ", "1", "2", "3", "4"]
    assert byte_level(metadata, CUTS["gpt-2"], "In  1234") != ids


@pytest.mark.model
def test_smollm2s_specials_ends_and_template(smollm2: tuple[ModelTokenizer, dict[str, Any]]) -> None:
    tokenizer, _ = smollm2
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>")[0] == 1
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.chat_template is not None
    assert replace(tokenizer, chat_template=None).encode("a") == tokenizer.encode("a")
