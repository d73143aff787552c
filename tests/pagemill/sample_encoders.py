"""The files of a small sentence-transformers model: BERT's config.json, modules and pooling. Without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def bert_json(**overrides: Any) -> dict[str, Any]:
    """A `config.json` of a two-layer BERT with 64 positions; a value of None takes the field away."""
    config: dict[str, Any] = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 120,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
    } | overrides
    return {key: value for key, value in config.items() if value is not None}


def write_sentence_files(
    folder: Path,
    *,
    pooling: dict[str, Any] | None = None,
    modules: list[dict[str, Any]] | None = None,
    text: dict[str, Any] | None = None,
    prompts: dict[str, Any] | None = None,
) -> Path:
    """modules.json and what it names, into a folder that is made if missing; by default mean pooling, normalised."""
    listed = [TRANSFORMER, POOLING, NORMALIZE] if modules is None else modules
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed))
    mean = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mean if pooling is None else pooling))
    for name, body in (("sentence_bert_config.json", text), ("config_sentence_transformers.json", prompts)):
        if body is not None:
            (folder / name).write_text(json.dumps(body))
    return folder
