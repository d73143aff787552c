"""GGUF metadata becomes numbers, or one line that says why not."""

from pathlib import Path
from typing import Any

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill.gguf_config import GGUF_ARCHITECTURES, from_gguf
from pagemill.model_config import RopeScaling
from pagemill.native_families import FAMILIES
from pagemill.tensor_info import TensorInfo

WHERE = Path("/models/x")
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def tensors(*extra: str) -> dict[str, TensorInfo]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (40, 64), "blk.0.attn_q.weight": (64, 64)}
    shapes |= dict.fromkeys(extra, (8,))
    return {name: TensorInfo(name, "Q4_1", shape, WHERE, 0, 0) for name, shape in shapes.items()}


def test_gguf_metadata() -> None:
    config = from_gguf(METADATA | {"tokenizer.ggml.eot_token_id": 3}, tensors(), WHERE)
    assert (config.vocab_size, config.head_dim, config.num_key_value_heads, config.dtype) == (40, 16, 2, "Q4_1")
    assert (config.tie_word_embeddings, config.rope_scaling, config.rope_theta) == (True, None, 10000.0)
    assert config.eos_token_ids == (2, 3)
    assert not from_gguf(METADATA, tensors("output.weight"), WHERE).tie_word_embeddings
    assert from_gguf(METADATA, tensors("blk.0.attn_q.bias"), WHERE).attention_bias


def test_gguf_rope() -> None:
    linear = METADATA | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert from_gguf(linear, tensors(), WHERE).rope_scaling == RopeScaling("linear", 2.0)
    assert from_gguf(METADATA, tensors("rope_freqs.weight"), WHERE).rope_scaling == RopeScaling("factors", 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "qwen3moe"}, "qwen3moe"),
        ({"general.architecture": 5}, "5"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
    ],
)
def test_a_gguf_that_would_be_run_wrongly_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(PagemillError, match=named) as caught:
        from_gguf(METADATA | change, tensors(), WHERE)
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE
    assert GGUF_ARCHITECTURES["llama"] in FAMILIES


@pytest.mark.parametrize("value", [None, "many", [1], 0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", [key for key in METADATA if key.startswith("llama.")])
def test_missing_and_impossible_gguf_numbers_are_invalid(name: str, value: Any) -> None:
    if name == "llama.attention.head_count_kv" and value is None:
        assert from_gguf({k: v for k, v in METADATA.items() if k != name}, tensors(), WHERE).num_key_value_heads == 4
        return
    metadata = METADATA | {name: value} if value is not None else {k: v for k, v in METADATA.items() if k != name}
    with pytest.raises(PagemillError, match="metadata") as caught:
        from_gguf(metadata, tensors(), WHERE)
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID


@pytest.mark.parametrize("missing", ["token_embd.weight", "blk.0.attn_q.weight"])
def test_a_gguf_without_its_first_tensors_is_invalid(missing: str) -> None:
    with pytest.raises(PagemillError, match=missing):
        from_gguf(METADATA, {k: v for k, v in tensors().items() if k != missing}, WHERE)


def test_an_embedding_without_rows_is_invalid() -> None:
    flat = tensors() | {"token_embd.weight": TensorInfo("token_embd.weight", "F32", (), WHERE, 0, 4)}
    with pytest.raises(PagemillError, match="metadata"):
        from_gguf(METADATA, flat, WHERE)
