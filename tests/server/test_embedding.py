"""`LLM.embed`: texts are prepared and pooled as the model's files say, encoders and decoders alike.

In float32, whatever the processor would choose: numbers are compared with transformers'.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaModel

from pagemill.failures import FailureReason, PagemillError
from pagemill_server import LLM
from pagemill_server.engine.errors import RequestRefused
from tests.pagemill.sample_encoders import POOLING, TRANSFORMER, write_sentence_files
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import MAX_LENGTH, make_encoder, write_tiny_encoder

TEXTS = ["a cat", "", "Two WORDS, and more: dogs?", "x " * 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32") as llm:
        yield llm


def vectors(llm: LLM, texts: Any, **more: Any) -> list[tuple[float, ...]]:
    return [result.outputs.embedding for result in llm.embed(texts, **more)]


@torch.no_grad()
def judged(folder: Path, text: str) -> torch.Tensor:
    """Mean pooling over transformers' states, normalised."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    states = make_encoder()(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(states.mean(0), dim=0)


# Encoders.


def test_vectors_are_transformers_states_pooled(llm: LLM, folder: Path) -> None:
    assert llm.task == "embed"
    for text, vector in zip(TEXTS, vectors(llm, TEXTS), strict=True):
        assert (torch.tensor(vector) - judged(folder, text)).abs().max() < 1e-5
        assert math.hypot(*vector) == pytest.approx(1)


def test_a_vector_does_not_depend_on_its_company(llm: LLM, folder: Path) -> None:
    together = vectors(llm, TEXTS)
    assert together == [vectors(llm, text)[0] for text in TEXTS] == vectors(llm, TEXTS[::-1])[::-1]
    with LLM(
        str(folder), dtype="float32", max_num_seqs=2, max_num_batched_tokens=16, scheduling_policy="fair"
    ) as narrow:
        assert vectors(narrow, TEXTS) == together


def test_token_ids_are_taken_as_they_are(llm: LLM) -> None:
    (result,) = llm.embed("a cat")
    assert result.prompt_token_ids[0] == 2  # [CLS]
    assert vectors(llm, [list(result.prompt_token_ids)]) == [result.outputs.embedding]


def test_a_text_that_is_too_long_is_refused_with_both_numbers_or_cut(llm: LLM) -> None:
    long = "y " * 100
    with pytest.raises(RequestRefused, match=f"102 tokens.* at most {MAX_LENGTH}"):
        llm.embed(["fine", long])
    (cut,) = llm.embed(long, truncate_prompt_tokens=-1)
    assert (len(cut.prompt_token_ids), cut.prompt_token_ids[-1]) == (MAX_LENGTH, 3)  # [SEP] stays
    assert [cut.outputs.embedding] == vectors(llm, "y " * (MAX_LENGTH - 2))
    assert len(llm.embed(long, truncate_prompt_tokens=5)[0].prompt_token_ids) == 5
    assert len(llm.embed([list(range(10, 90))], truncate_prompt_tokens=5)[0].prompt_token_ids) == 5
    for wrong in (0, -2, MAX_LENGTH + 1):
        with pytest.raises(ValueError, match="truncate_prompt_tokens must be"):
            llm.embed(long, truncate_prompt_tokens=wrong)


def test_the_length_is_the_files_word_unless_the_user_has_another(folder: Path) -> None:
    with LLM(str(folder), max_model_len=64) as llm:
        assert len(llm.embed("y " * 62)[0].prompt_token_ids) == 64
    with pytest.raises(PagemillError, match="64 tokens that the model was made for"):
        LLM(str(folder), max_model_len=65)


def test_text_is_prepared_as_the_files_say(tmp_path: Path, llm: LLM) -> None:
    sentence = {
        "text": {"max_seq_length": 32, "do_lower_case": True},
        "prompts": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
        "pooling": {"pooling_mode": "cls"},
    }
    folder = write_tiny_encoder(tmp_path, sentence=sentence)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with LLM(str(folder), dtype="float32") as prompted:
        (result,) = prompted.embed("A CAT")
        assert result.prompt_token_ids == llm.embed("query: a cat")[0].prompt_token_ids
        assert vectors(prompted, "A CAT") != vectors(llm, "query: a cat")  # another pooling


def test_an_encoder_generates_nothing(llm: LLM, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"encoder.*use embed"):
        llm.generate("a")
    with pytest.raises(ValueError, match=r"encoder.*use embed"):
        llm.chat([{"role": "user", "content": "a"}])
    with pytest.raises(PagemillError, match="generates no text"):
        LLM(str(folder), task="generate")


@pytest.mark.parametrize("arguments", [{"tensor_parallel_size": 2}, {"kv_offloading_size": 1}])
def test_what_means_nothing_for_an_encoder(folder: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(PagemillError, match="means nothing") as caught:
        LLM(str(folder), **arguments)
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([[]], "prompt 0 has no tokens"), (["a", 7], "prompt 1 must be text"), ("\udfff", "not valid Unicode")],
)
def test_what_is_no_text(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.embed(prompts)
    assert llm.embed([]) == []


# Decoders.


@pytest.fixture(scope="module")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("decoder"))


def open_decoder(folder: Path, **more: Any) -> LLM:
    settings: dict[str, Any] = {"task": "embed", "dtype": "float32", "kv_cache_memory_bytes": "1MiB", "block_size": 8}
    return LLM(str(folder), **(settings | more))


@torch.no_grad()
def last_state(folder: Path, ids: tuple[int, ...]) -> torch.Tensor:
    """transformers', after the last norm."""
    model = LlamaModel.from_pretrained(folder, dtype=torch.float32).eval()
    state: torch.Tensor = model(torch.tensor([ids])).last_hidden_state[0, -1]
    return state


def test_a_decoders_vector_is_its_last_tokens_state(decoder_folder: Path) -> None:
    with open_decoder(decoder_folder) as llm:
        assert llm.task == "embed"
        for result in llm.embed(["one", "another text, longer than a block"]):
            expected = torch.nn.functional.normalize(last_state(decoder_folder, result.prompt_token_ids), dim=0)
            assert (torch.tensor(result.outputs.embedding) - expected).abs().max() < 1e-5


def test_it_has_the_same_bits_in_chunks_in_company_and_from_the_prefix_cache(decoder_folder: Path) -> None:
    texts = ["one", "a text that begins as another does", "a text that begins as another does, and goes on", "x" * 200]
    with open_decoder(decoder_folder, enable_prefix_caching=False) as llm:
        alone = [vectors(llm, text)[0] for text in texts]
    with open_decoder(decoder_folder, max_num_batched_tokens=7) as llm:
        assert vectors(llm, texts) == alone
        assert vectors(llm, texts[::-1]) == alone[::-1]


def test_a_decoders_longest_text_needs_no_room_for_an_answer(decoder_folder: Path) -> None:
    with open_decoder(decoder_folder) as llm:
        assert len(llm.embed("x" * 256)) == 1
        with pytest.raises(RequestRefused, match=r"257 tokens.* 256"):
            llm.embed("x" * 257)
        assert vectors(llm, "x" * 300, truncate_prompt_tokens=-1) == vectors(llm, "x" * 256)
        with pytest.raises(ValueError, match="prompt 0 has no tokens"):
            llm.embed("")


def test_one_that_generates_says_how_it_could_embed(decoder_folder: Path) -> None:
    with LLM(str(decoder_folder), dtype="float32", kv_cache_memory_bytes="1MiB") as llm:
        assert llm.task == "generate"
        with pytest.raises(ValueError, match='task="embed"'):
            llm.embed("a")
    with open_decoder(decoder_folder) as llm, pytest.raises(ValueError, match='task="generate"'):
        llm.generate("a")


def test_a_decoder_pools_as_its_files_say(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    write_sentence_files(
        folder, pooling={"pooling_mode_lasttoken": True}, modules=[TRANSFORMER, POOLING], text={"max_seq_length": 20}
    )
    with LLM(str(folder), dtype="float32", kv_cache_memory_bytes="1MiB") as llm:  # what it was made for
        (result,) = llm.embed("not normalised")
        expected = last_state(folder, result.prompt_token_ids)
        assert (torch.tensor(result.outputs.embedding) - expected).abs().max() < 1e-4
        with pytest.raises(RequestRefused, match=r"21 tokens.* 20"):
            llm.embed("x" * 21)
    with LLM(str(folder), task="generate", kv_cache_memory_bytes="1MiB") as llm:
        assert llm.generate("a")
    write_sentence_files(folder)
    with pytest.raises(PagemillError, match="mean pooling, and a decoder's is the last token's"):
        LLM(str(folder))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_decoder_saved_without_its_head(tmp_path: Path, decoder_folder: Path, tied: bool) -> None:
    """As sentence-transformers saves one: another class, and names without the outer module's."""
    folder = write_tiny_llama(tmp_path, architectures=["LlamaModel"], tie_word_embeddings=tied)
    bare = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if name != "lm_head.weight"
    }
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    with LLM(str(folder), dtype="float32", kv_cache_memory_bytes="1MiB") as llm, open_decoder(decoder_folder) as other:
        assert vectors(llm, "one") == vectors(other, "one")
    with pytest.raises(PagemillError, match="without its output head"):
        LLM(str(folder), task="generate")
