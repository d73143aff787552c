"""What weights take in memory, by the type that they are kept in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagemill import config_reading
from pagemill.memory_fit import FitRequest, fit
from pagemill.model_config import Experts, ModelConfig
from pagemill.tensor_info import TensorInfo
from pagemill.weight_storage import kept_type, stored_bytes
from tests.pagemill.sample_encoders import bert_json
from tests.server.tiny import tiny_config

TIED = config_reading.from_hugging_face(tiny_config(), {}, Path("tiny"))
UNTIED = replace(TIED, tie_word_embeddings=False)
HIDDEN, INNER, LAYERS, VOCABULARY = TIED.hidden_size, TIED.intermediate_size, TIED.num_hidden_layers, TIED.vocab_size
HEADS = (TIED.num_attention_heads + 2 * TIED.num_key_value_heads) * TIED.head_dim
OUTPUTS = LAYERS * (HEADS + 2 * HIDDEN + 2 * INNER) + VOCABULARY
NORMS = (2 * LAYERS + 1) * HIDDEN


def tensors(**types: tuple[str, tuple[int, ...]]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(name, dtype, shape, Path("f"), 0, 0) for name, (dtype, shape) in types.items()}


@pytest.mark.parametrize(
    ("stored", "kept"),
    [("F32", "float32"), ("F64", "float32"), ("BF16", "bfloat16"), ("F16", "float16"), ("Q4_1", "float16")],
)
def test_sixteen_bits_are_kept_and_what_is_quantised_becomes_sixteen(stored: str, kept: str) -> None:
    assert kept_type(tensors(a=(stored, (100, 100)), norm=("F32", (20000,)), small=("F32", (9, 9)))) == kept


def test_without_a_matrix_nothing_is_kept_in_less_than_float32() -> None:
    assert kept_type({}) == "float32"


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize(("kind", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_matrices_take_their_type_and_vectors_float32(config: ModelConfig, kind: str, size: int) -> None:
    assert stored_bytes(config, kind, kind) == size * (config.num_parameters() - NORMS) + 4 * NORMS


@pytest.mark.parametrize(("kind", "size"), [("float32", 4), ("bfloat16", 2)])
def test_an_encoders_matrices_and_words_take_their_type(kind: str, size: int) -> None:
    config = config_reading.from_hugging_face(bert_json(), {}, Path("tiny"))
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    matrices = layers * (4 * hidden * hidden + 2 * hidden * inner) + config.vocab_size * hidden
    assert stored_bytes(config, kind, kind) == size * matrices + 4 * (config.num_parameters() - matrices)


def test_int8_has_a_scale_for_each_output_and_leaves_an_embedding_table_as_it_is() -> None:
    matrices = TIED.num_parameters() - NORMS
    assert stored_bytes(TIED, "int8", "bfloat16") == matrices + 4 * OUTPUTS + 4 * NORMS
    table = 2 * VOCABULARY * HIDDEN
    assert stored_bytes(UNTIED, "int8", "bfloat16") == matrices + 4 * OUTPUTS + 4 * NORMS + table


def test_every_expert_counts() -> None:
    sparse = replace(TIED, experts=Experts(4, 2, 24, True, layers=(1,)))
    dense = 3 * HIDDEN * INNER
    more = 4 * (3 * HIDDEN * 24 + HIDDEN) - dense
    assert stored_bytes(sparse, "float16", "float16") - stored_bytes(TIED, "float16", "float16") == 2 * more


def test_the_fit_knows_the_type() -> None:
    request = FitRequest(TIED, 4, 0, kv_cache_bytes=1 << 20)
    half = fit(replace(request, weights="bfloat16"))
    assert half.weights_bytes == stored_bytes(TIED, "bfloat16", "bfloat16")
    assert half.kv_bytes_per_token == fit(request).kv_bytes_per_token
    assert fit(replace(request, packs_weights=True)).weights_bytes > fit(request).weights_bytes > half.weights_bytes


def test_what_pagemill_does_not_compute_itself_is_not_quantised() -> None:
    failure = fit(FitRequest(replace(TIED, native=False), 4, 0, kv_cache_bytes=1 << 20, weights="int8")).failure
    assert failure is not None
    assert "leave --quantization" in failure.message
