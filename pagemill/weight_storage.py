"""In which type a model's weights are kept in memory, and what that takes.

A checkpoint of 16 bits is kept as it is, exactly; what a GGUF has quantised is kept in float16, rounded at the eleventh bit.
`--quantization int8` makes whole numbers with a scale for each output. Pure; used by `memory_fit`, by what asks
it, and by the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

from pagemill.encoder_config import EncoderConfig
from pagemill.model_config import ModelConfig
from pagemill.tensor_info import TensorInfo

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
QUANTIZATIONS = ("none", "int8")
_SCALE_BYTES = 4  # int8: float32, one an output
_VECTOR_BYTES = 4  # norms and biases are float32
_KEPT = {"F64": "float32", "F32": "float32", "BF16": "bfloat16"}  # all others in float16


def kept_type(tensors: Mapping[str, TensorInfo]) -> str:
    """ "float32", "bfloat16" or "float16": what most of a checkpoint's numbers are kept in where nobody asks for another."""
    numbers: Counter[str] = Counter()
    for info in tensors.values():
        if len(info.shape) > 1:
            numbers[_KEPT.get(info.dtype, "float16")] += prod(info.shape)
    return max(numbers, key=numbers.__getitem__, default="float32")


def unquantizable(config: ModelConfig) -> str | None:
    """Why int8 can't be had for a model, and what can; None where it can."""
    if config.native and config.kv_bytes_per_token(1):
        return None
    return f"weights of {config.architecture} can't be quantised at the load, only those of decoders that Pagemill computes itself"


def stored_bytes(config: ModelConfig, matrices: str, table: str) -> int:
    """Of a native family whose matrices and, where the output head is not tied to it, embedding table are of these types."""
    numbers = outputs = 0
    for count, out_size, in_size in _matrices(config):
        numbers += count * out_size * in_size
        outputs += count * out_size
    separate = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    vectors = config.num_parameters() - numbers - separate
    scales = outputs * _SCALE_BYTES if matrices == "int8" else 0
    return numbers * BYTES[matrices] + scales + separate * BYTES[table] + vectors * _VECTOR_BYTES


def _matrices(config: ModelConfig) -> Iterator[tuple[int, int, int]]:
    """How many, of what shape [out, in]; the output head's is the last. An encoder has none."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    if isinstance(config, EncoderConfig):
        yield layers, 3 * hidden, hidden
        yield layers, hidden, hidden
        yield layers, config.intermediate_size, hidden
        yield layers, hidden, config.intermediate_size
        return
    q_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    yield layers, q_size + 2 * kv_size, hidden
    yield layers, hidden, q_size
    sparse = 0
    if (experts := config.experts) is not None:
        sparse = len(experts.layers)
        yield sparse, experts.count, hidden
        yield sparse * experts.count, 2 * experts.intermediate_size, hidden
        yield sparse * experts.count, hidden, experts.intermediate_size
    yield layers - sparse, 2 * config.intermediate_size, hidden
    yield layers - sparse, hidden, config.intermediate_size
    yield 1, config.vocab_size, hidden
