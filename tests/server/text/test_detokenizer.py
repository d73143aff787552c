from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.text.detokenizer import Detokenizer, TokenBytes
from tests.server.tiny import IM_END, byte_characters, write_tiny_llama


def byte_level() -> Tokenizer:
    """Bytes, tokens of several bytes that break characters anywhere, a special token and an added one with a space."""
    names = byte_characters()
    vocab = {name: byte for byte, name in enumerate(names)}
    merged = ["".join(names[byte] for byte in text.encode()) for text in ("é", " a", "€", "😀", "the ")]
    broken = [names[0xE2] + names[0x82], names[0xAC] + names[0xE2], names[0x41] + names[0xF0]]
    for token in (*merged, *broken):
        vocab.setdefault(token, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("two words", special=False, normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's: words with ▁ for a space, and bytes for the rest."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for word in ("▁", "▁the", "▁▁", "a", "é", "▁日本"):
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def streamed(vocabulary: TokenBytes, ids: list[int]) -> str:
    detokenizer = Detokenizer(vocabulary)
    return "".join([*(detokenizer.push(token) for token in ids), detokenizer.flush()])


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1)))
def test_the_pieces_joined_are_the_whole_decoded(ids: list[int]) -> None:
    assert streamed(TokenBytes(BYTE_LEVEL), ids) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


@given(st.text())
def test_any_text_comes_back_from_its_bytes(text: str) -> None:
    assert streamed(TokenBytes(BYTE_LEVEL), list(text.encode())) == text
    assert streamed(TokenBytes(BYTE_FALLBACK), [byte + 1 for byte in text.encode()]) == text


@given(st.lists(st.sampled_from(["▁", "▁the", "▁▁", "a", "é", "▁日本"])))
def test_byte_fallback_continues_the_prompt(words: list[str]) -> None:
    """Decoding all at once strips one space at the start of a text; an answer is no start, its space stays."""
    ids = [BYTE_FALLBACK.token_to_id(word) for word in ["a", *words]]
    assert "a" + streamed(TokenBytes(BYTE_FALLBACK), ids[1:]) == BYTE_FALLBACK.decode(ids)


@given(st.lists(st.integers(0, 255)))
def test_a_half_character_is_never_shown(ids: list[int]) -> None:
    detokenizer = Detokenizer(TokenBytes(BYTE_LEVEL))
    shown = ""
    for place, token in enumerate(ids, start=1):
        shown += detokenizer.push(token)
        assert bytes(ids[:place]).decode("utf-8", "replace").startswith(shown)


def test_within_character() -> None:
    detokenizer = Detokenizer(TokenBytes(BYTE_LEVEL))
    states = []
    for byte in "a€".encode():
        detokenizer.push(byte)
        states.append(detokenizer.within_character)
    assert states == [False, True, True, False]
    detokenizer.push(0xE2)
    assert detokenizer.flush() == "�"


def test_special_and_unknown_ids_have_no_text_but_a_spelling(tiny_tokenizer: Tokenizer) -> None:
    vocabulary = TokenBytes(tiny_tokenizer)
    assert (vocabulary.of(IM_END), vocabulary.spelled(IM_END)) == (b"", b"<|im_end|>")
    assert (vocabulary.of(10**6), vocabulary.spelled(10**6)) == (b"", b"")
    assert TokenBytes(tiny_tokenizer, {65}).of(65) == b""


@pytest.fixture
def tiny_tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(write_tiny_llama(tmp_path) / "tokenizer.json"))


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.CTC()])
def test_other_kinds_of_tokenizers_are_refused(decoder: object) -> None:
    tokenizer = Tokenizer(models.BPE())
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(PagemillError) as refusal:
        TokenBytes(tokenizer)
    assert refusal.value.failure.reason is FailureReason.UNSUPPORTED_TOKENIZER
