"""BERT's and RoBERTa's config.json as numbers; what would be computed wrongly is refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagemill.config_reading import from_hugging_face
from pagemill.encoder_config import EncoderConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.memory_fit import FitRequest, fit
from tests.pagemill.sample_encoders import bert_json

MINILM = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
}
GIB = 1024**3


def encoder(**overrides: Any) -> EncoderConfig:
    config = from_hugging_face(bert_json(**overrides), {}, Path("x"))
    assert isinstance(config, EncoderConfig)
    return config


def test_all_minilm_l6_v2_as_its_authors_count_it() -> None:
    config = encoder(**MINILM)
    pooler = 384 * 384 + 384
    assert config.num_parameters() + pooler == 22_713_216  # its model card says 22.7M
    assert (config.head_dim, config.longest_sequence, config.kv_bytes_per_token(4)) == (32, 512, 0)


def test_robertas_positions_begin_after_the_padding_id() -> None:
    config = encoder(architectures=["XLMRobertaModel"], pad_token_id=1, max_position_embeddings=514, type_vocab_size=1)
    assert (config.first_position, config.longest_sequence, config.num_token_types) == (2, 512, 1)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "swish"}, "swish"),
        ({"is_decoder": True}, "decodes"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
    ],
)
def test_what_would_be_computed_wrongly(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(PagemillError, match=named) as caught:
        encoder(**overrides)
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE


@pytest.mark.parametrize(
    "overrides",
    [
        {"hidden_size": None},
        {"num_attention_heads": 5},
        {"num_attention_heads": 0},
        {"vocab_size": -1},
        {"layer_norm_eps": 0},
    ],
)
def test_numbers_that_no_model_has(overrides: dict[str, Any]) -> None:
    with pytest.raises(PagemillError) as caught:
        encoder(**overrides)
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID


def test_it_needs_weights_and_one_step_and_no_cache() -> None:
    config = encoder(**MINILM)
    ask = FitRequest(config, dtype_bytes=4, memory_bytes=1 * GIB, max_num_batched_tokens=512)
    fits = fit(ask)
    assert (fits.failure, fits.num_blocks, fits.kv_cache_bytes, fits.max_model_len) == (None, 0, 0, 512)
    assert fits.weights_bytes == 4 * config.num_parameters()
    # the widest moment of a step: the inner layer before and after its activation, beside the stream
    assert fits.activation_bytes >= 512 * (2 * 1536 + 384) * 4


@pytest.mark.parametrize("size", [2, 4])
def test_who_can_not_say_which_kernels_compute_is_told_the_larger_step(size: int) -> None:
    ours = FitRequest(encoder(**MINILM), dtype_bytes=size, memory_bytes=GIB, max_num_batched_tokens=512, native=True)
    assert fit(replace(ours, native=False)).activation_bytes >= fit(ours).activation_bytes


def test_a_device_that_is_too_small_is_told_which_is_not() -> None:
    config = encoder(**MINILM)
    small = fit(FitRequest(config, dtype_bytes=4, memory_bytes=GIB // 20))
    assert small.failure is not None
    assert small.failure.reason is FailureReason.OUT_OF_MEMORY
    gib = small.failure.suggestion["gpu.memoryGiB"]
    assert isinstance(gib, float)
    assert fit(FitRequest(config, dtype_bytes=4, memory_bytes=int(gib * GIB))).failure is None


def test_more_than_its_positions() -> None:
    long = fit(FitRequest(encoder(**MINILM), dtype_bytes=4, memory_bytes=GIB, max_model_len=513))
    assert long.failure is not None
    assert long.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert long.failure.suggestion == {"maxModelLen": 512}
