"""BERT's and RoBERTa's states equal transformers' own, by our kernels and by torch; a text's do not depend on its step's others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from pagemill.embedding_config import EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill_server.config import ModelOptions
from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.model.bert import Bert
from pagemill_server.model.device import place_encoder
from pagemill_server.model.encoder import EncoderRunner
from pagemill_server.model.load_encoder import make_encoder as load_model
from pagemill_server.model.native_encoder import NativeBert, takes
from tests.server.computing import computing, needs_native
from tests.server.tiny_bert import make_encoder, write_tiny_encoder

CPU = torch.device("cpu")
# The largest difference measured over all shapes below is 3e-6, at states up to 4.
BOUND = 2e-5
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "relu": {"hidden_act": "relu"},
    "one token type": {"type_vocab_size": 1},
    "one head": {"num_attention_heads": 1},
    "eps": {"layer_norm_eps": 1e-2},
    "roberta": {"architectures": ["RobertaModel"], "pad_token_id": 1, "type_vocab_size": 1},
    "roberta, another padding": {"architectures": ["RobertaModel"], "pad_token_id": 7, "type_vocab_size": 1},
}


@pytest.fixture(params=[pytest.param(True, marks=needs_native), False], ids=["native", "torch"], autouse=True)
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    with computing(native=request.param):
        yield request.param


def load(folder: Path, dtype: str = "float32") -> EncoderRunner:
    files, options = inspect(folder), ModelOptions(str(folder), ("test",), dtype=dtype, device="cpu")
    assert isinstance(files.config, EncoderConfig)
    placement = place_encoder(options, files, native=takes(files.config))
    return EncoderRunner(load_model(files, files.config, placement), EmbeddingConfig("mean"), CPU)


def test_it_is_computed_by_what_was_asked_for(tmp_path: Path, native: bool) -> None:
    assert isinstance(load(write_tiny_encoder(tmp_path))._model, NativeBert if native else Bert)


def step(texts: list[list[int]]) -> SchedulerOutput:
    entries = (
        ScheduledSequence(seq_id, tuple(ids), 0, (), None, seed=0, output_position=0, pooling=True)
        for seq_id, ids in enumerate(texts)
    )
    return SchedulerOutput(tuple(entries), sum(map(len, texts)))


def texts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(10, 100, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def expected(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """transformers', of one text without padding."""
    states: torch.Tensor = model(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids))).last_hidden_state[0]
    return states


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_states_are_transformers_own(tmp_path: Path, shape: dict[str, Any]) -> None:
    runner, judge = load(write_tiny_encoder(tmp_path, **shape)), make_encoder(**shape)
    longest = 64 - (shape["pad_token_id"] + 1 if "architectures" in shape else 0)
    asked = texts(1, 7, longest, 20)
    hidden, bounds = runner.hidden(step(asked))
    for ids, (start, end) in zip(asked, pairwise(bounds), strict=True):
        assert (hidden[start:end] - expected(judge, ids)).abs().max() < BOUND


@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_has_the_same_bits_alone_and_in_company(tmp_path: Path, threads: int) -> None:
    with computing(threads=threads):
        runner = load(write_tiny_encoder(tmp_path))
    asked = texts(1, 5, 64, 17, 33, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = runner.run(step(asked)).embeddings
        turned = runner.run(step(asked[::-1])).embeddings
        for place, ids in enumerate(asked):
            (alone,) = runner.run(step([ids])).embeddings.values()
            assert alone == together[place] == turned[len(asked) - 1 - place]
    finally:
        torch.set_num_threads(before)


def test_a_text_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][99] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    result = load(folder).run(step([[1, 2, 3], [1, 99, 3], [3, 2]]))
    assert result.failed == {1}
    assert result.embeddings.keys() == {0, 2}


def test_half_precision(tmp_path: Path) -> None:
    (ids,) = texts(20)
    folder = write_tiny_encoder(tmp_path)
    states = [load(folder, dtype).hidden(step([ids]))[0].float() for dtype in ("float32", "bfloat16")]
    assert states[1].isfinite().all()
    assert (states[0] - states[1]).abs().max() < 0.2


def test_weights_saved_within_a_model_with_a_head(tmp_path: Path) -> None:
    plain, wrapped = write_tiny_encoder(tmp_path / "plain"), write_tiny_encoder(tmp_path / "wrapped")
    weights = {f"bert.{name}": tensor for name, tensor in load_file(wrapped / "model.safetensors").items()}
    weights |= {"cls.predictions.bias": torch.zeros(120), "bert.embeddings.position_ids": torch.arange(64)[None]}
    save_file(weights, wrapped / "model.safetensors", metadata={"format": "pt"})
    asked = step(texts(9, 3))
    assert load(wrapped).run(asked) == load(plain).run(asked)


def test_a_tensor_that_bert_does_not_have_is_another_model(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path)
    weights = load_file(folder / "model.safetensors") | {"encoder.layer.0.gate.weight": torch.zeros(1)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PagemillError, match=r"encoder\.layer\.0\.gate") as caught:
        load(folder)
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE


def test_as_many_parameters_as_the_config_counts(tmp_path: Path) -> None:
    files = inspect(write_tiny_encoder(tmp_path))
    stored = sum(info.nbytes for name, info in files.tensors.items() if not name.startswith("pooler."))
    assert stored == 4 * files.config.num_parameters()
