"""Write two tiny random models into a models folder: `pagemill/tiny` generates, `pagemill/tiny-embed` makes vectors.

    python examples/tiny_models.py FOLDER

They answer nonsense, always the same, and load in a moment. Every server image carries them, so that `helm test` and a first
deployment need no hub. Standard library only: the image's build runs it before anything is installed.
"""

import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2
CONTEXT = 8192  # tokens: streams may be long
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
Shape = tuple[int, ...]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    models = Path(sys.argv[1])
    write_generator(models / "pagemill" / "tiny")
    write_encoder(models / "pagemill" / "tiny-embed")


def write_generator(folder: Path) -> None:
    """A Llama of 100,000 parameters whose tokens are bytes."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 264,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": 258,
    }
    write_json(folder / "config.json", config)
    write_weights(folder / "model.safetensors", dict(generator_shapes()))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special(256, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {character: byte for byte, character in enumerate(bytes_as_text())},
            "merges": [],
        },
    }
    write_json(folder / "tokenizer.json", tokenizer)
    settings = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})


def generator_shapes() -> Iterator[tuple[str, Shape]]:
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (264, HIDDEN)
    for layer in (f"model.layers.{index}" for index in range(LAYERS)):
        yield f"{layer}.input_layernorm.weight", (HIDDEN,)
        yield f"{layer}.post_attention_layernorm.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv), ("o", HIDDEN)):
            yield f"{layer}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        yield f"{layer}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{layer}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{layer}.mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)


def write_encoder(folder: Path) -> None:
    """A BERT with mean pooling, whose words are single characters."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(words),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    write_json(folder / "config.json", config)
    write_weights(folder / "model.safetensors", dict(encoder_shapes(len(words))))
    tokenizer = {
        "version": "1.0",
        "added_tokens": special(0, words[:4]),
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "cls": ["[CLS]", 2],
            "sep": ["[SEP]", 3],
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: place for place, word in enumerate(words)},
        },
    }
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"},
    )
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(parts)
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 256})
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    )


def encoder_shapes(vocabulary: int) -> Iterator[tuple[str, Shape]]:
    yield "embeddings.word_embeddings.weight", (vocabulary, HIDDEN)
    yield "embeddings.position_embeddings.weight", (512, HIDDEN)
    yield "embeddings.token_type_embeddings.weight", (2, HIDDEN)
    yield from norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        for name in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{name}", HIDDEN, HIDDEN)
        yield from linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN)
        yield from norm(f"{layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.intermediate.dense", INNER, HIDDEN)
        yield from linear(f"{layer}.output.dense", HIDDEN, INNER)
        yield from norm(f"{layer}.output.LayerNorm")


def linear(name: str, rows: int, columns: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def norm(name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (HIDDEN,)
    yield f"{name}.bias", (HIDDEN,)


def write_weights(file: Path, shapes: dict[str, Shape]) -> None:
    """Safetensors in float32. Norms lie around one, biases around zero; the rest is scaled so that greedy text wanders."""
    source = random.Random(0)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in shapes.items():
        size = 1
        for dimension in shape:
            size *= dimension
        middle, width = (1.0, 0.2) if "norm" in name.lower() and name.endswith("weight") else (0.0, 0.3)
        if len(shape) == 2 and "embed" not in name:
            width = 2.0 * shape[1] ** -0.5
        values = [source.gauss(middle, width) for _ in range(size)]
        start = len(data)
        data += struct.pack(f"<{size}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def special(first: int, words: "tuple[str, ...] | list[str]") -> list[dict[str, object]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": first + place, "content": word, **flags, "special": True} for place, word in enumerate(words)]


def bytes_as_text() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_json(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
