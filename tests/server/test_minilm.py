"""The real all-MiniLM-L6-v2, and tiny models with other poolings, against sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pagemill_server import LLM
from tests.server.api.running import NAME, serving
from tests.server.computing import needs_native
from tests.server.real_model import real_encoder
from tests.server.tiny_bert import write_tiny_encoder

pytestmark = pytest.mark.model

BOUND = 1e-5
ROUNDED_BOUND = 4e-3  # of a number, where the vector's length is 1; 1.9e-3 was seen
TEXTS = [
    "",
    "A cat sits on the mat.",
    "UPPER case and lower Case",
    "Ünïcödé, 你好, emoji 🎉 and\ttabs\n",
    "antidisestablishmentarianism " * 20,
    "The quick brown fox jumps over the lazy dog. " * 60,  # longer than the model takes
]


def difference(folder: Path, texts: list[str], dtype: str = "float32") -> float:
    from sentence_transformers import SentenceTransformer  # ten seconds to import: only where it is needed

    wanted = torch.from_numpy(SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False))
    with LLM(str(folder), dtype=dtype) as llm:
        results = llm.embed(texts, truncate_prompt_tokens=-1)
    return float((torch.tensor([result.outputs.embedding for result in results]) - wanted).abs().max())


def test_all_minilm_l6_v2() -> None:
    assert difference(real_encoder().path, TEXTS) < BOUND


@needs_native
def test_in_bfloat16_it_is_near() -> None:
    assert BOUND < difference(real_encoder().path, TEXTS, "bfloat16") < ROUNDED_BOUND


def test_the_server_says_the_same_as_python() -> None:
    path = real_encoder().path
    with LLM(str(path), dtype="float32") as llm:  # as `serving` has it
        wanted = [result.outputs.embedding for result in llm.embed(TEXTS[1:], truncate_prompt_tokens=-1)]
    with serving(path) as server:
        more = {"truncate_prompt_tokens": -1}
        answer = server.openai.embeddings.create(model=NAME, input=TEXTS[1:], extra_body=more)
        count = server.openai.embeddings.create(model=NAME, input=["a cat", "a kitten"]).usage.total_tokens
        with server.client() as client:
            text = client.post("/detokenize", json={"tokens": [101, 1037, 4937, 102]}).json()
    assert [tuple(entry.embedding) for entry in answer.data] == wanted
    assert (count, text) == (8, {"prompt": "[CLS] a cat [SEP]"})  # as docs/embeddings.md has it


@pytest.mark.parametrize("shape", [{}, {"architectures": ["RobertaModel"], "pad_token_id": 0}], ids=["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken"])
def test_every_pooling(tmp_path: Path, pooling: str, shape: dict[str, Any]) -> None:
    sentence = {
        "pooling": {"embedding_dimension": 64, "pooling_mode": pooling},
        "text": {"max_seq_length": 30, "do_lower_case": True},
        "prompts": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
    }
    folder = write_tiny_encoder(tmp_path, sentence=sentence, **shape)
    assert difference(folder, TEXTS) < BOUND
