"""Tokenizers beside safetensors: tokenizer.json, the special tokens' names, and every place that a chat template may lie in."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server.text.tokenizer import ModelTokenizer, load_tokenizer
from tests.server.tiny import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START, write_tiny_llama


def load(folder: Path, **settings: Any) -> ModelTokenizer:
    """Load the tiny model's tokenizer after changing entries of tokenizer_config.json (None removes one)."""
    path = folder / "tokenizer_config.json"
    body = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({key: value for key, value in body.items() if value is not None}))
    return load_tokenizer(inspect(folder))


def test_text_becomes_bytes_and_back(tmp_path: Path) -> None:
    tokenizer = load(write_tiny_llama(tmp_path))
    text = "Grüße, 世界 🌍\n\t12"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("") == []


def test_special_tokens_in_text_are_one_token_and_left_out_when_read_back(tmp_path: Path) -> None:
    tokenizer = load(write_tiny_llama(tmp_path))
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert ids == [IM_START, ord("a"), IM_END]
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>a<|im_end|>"


def test_ids_that_no_token_has_are_left_out(tmp_path: Path) -> None:
    assert load(write_tiny_llama(tmp_path)).decode([ord("a"), 263, 9999, ord("b")]) == "ab"


def test_others_run_while_a_long_text_is_read_and_written(tmp_path: Path) -> None:
    """The tokenizer's plain calls keep the interpreter's lock: a server would not answer /health meanwhile."""
    tokenizer = load(write_tiny_llama(tmp_path))
    turns, over = [0], threading.Event()

    def tick() -> None:
        while not over.is_set():
            turns[0] += 1
            time.sleep(0.001)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        before = turns[0]
        ids = tokenizer.encode("a" * 300_000)
        read = turns[0]
        tokenizer.encode_truncated("a" * 300_000, 10)
        cut = turns[0]
        assert len(tokenizer.decode(ids)) == 300_000
        assert min(read - before, cut - read, turns[0] - cut) > 5
    finally:
        over.set()
        ticking.join()


def test_the_longest_token(tmp_path: Path) -> None:
    assert load(write_tiny_llama(tmp_path)).longest_token() == len("<|endoftext|>")


def test_ids_and_names_of_the_ends(tmp_path: Path) -> None:
    tokenizer = load(write_tiny_llama(tmp_path))
    assert (tokenizer.bos_id, tokenizer.bos_token) == (END_OF_TEXT, "<|endoftext|>")
    assert (tokenizer.eos_ids, tokenizer.eos_token) == ((IM_END,), "<|im_end|>")


def test_all_ends_of_a_turn_are_known(tmp_path: Path) -> None:
    """Llama 3 lists several in its configs, and the tokenizer may name one more."""
    folder = write_tiny_llama(tmp_path, eos_token_id=[IM_START, 99])
    tokenizer = load(folder)
    assert tokenizer.eos_ids == (IM_START, 99, IM_END)
    assert tokenizer.eos_token == "<|im_end|>"


def test_tokens_may_be_named_by_objects_or_not_at_all(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    tokenizer = load(folder, bos_token={"content": "<|im_start|>", "lstrip": False}, eos_token=None)
    assert (tokenizer.bos_id, tokenizer.bos_token) == (IM_START, "<|im_start|>")
    assert (tokenizer.eos_ids, tokenizer.eos_token) == ((IM_END,), "<|im_end|>")  # the config's
    (folder / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(inspect(folder))
    assert (tokenizer.bos_id, tokenizer.chat_template) == (END_OF_TEXT, None)


def test_bos_is_added_where_the_tokenizer_says_so_and_only_when_asked(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        "<|endoftext|> $A", special_tokens=[("<|endoftext|>", END_OF_TEXT)]
    )
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = load(folder)
    assert tokenizer.encode("a") == [END_OF_TEXT, ord("a")]
    assert tokenizer.encode("a", add_special=False) == [ord("a")]


def test_a_tokenizer_file_that_cuts_or_pads_texts_is_not_obeyed(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    assert load(folder).encode("123456") == list(b"123456")
    assert load(folder).encode("1") == list(b"1")


def test_the_chat_template_of_the_settings(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    assert load(folder).chat_template == CHAT_TEMPLATE
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    both = load(folder, chat_template=named)
    assert (both.chat_template, both.tool_template) == ("plain", "tools")
    assert load(folder, chat_template=named[:1]).chat_template == "tools"
    assert load(folder, chat_template=None).chat_template is None


def test_a_chat_template_in_a_file_of_its_own_wins(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "chat_template.jinja").write_text("from the file")
    assert (load(folder).chat_template, load(folder).tool_template) == ("from the file", None)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert (load(folder).chat_template, load(folder).tool_template) == ("from the file", "with tools")


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(PagemillError, match=r"chat_template\.jinja can't be read") as error:
        load(folder)
    assert error.value.failure.reason is FailureReason.MODEL_INVALID


def test_a_model_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(PagemillError) as caught:
        load(folder)
    assert caught.value.failure.reason == FailureReason.UNSUPPORTED_TOKENIZER


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("body", [b"{", b'{"model": 3}', b"\xff\xfe\x00", b"[]"])
def test_damaged_files_are_named(tmp_path: Path, name: str, body: bytes) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / name).write_bytes(body)
    if name == "tokenizer_config.json" and body.startswith((b'{"', b"[")):
        assert load_tokenizer(inspect(folder)).chat_template is None  # well-formed, says nothing
        return
    with pytest.raises(PagemillError) as caught:
        load_tokenizer(inspect(folder))
    assert caught.value.failure.reason == FailureReason.MODEL_INVALID
    assert name in str(caught.value)
