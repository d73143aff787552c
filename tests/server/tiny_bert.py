"""A tiny random encoder on disk, made by transformers: BERT or RoBERTa, a WordPiece tokenizer, the sentence-transformers files.

Used by the tests of embeddings; knows nothing of Pagemill's code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedModel, RobertaConfig, RobertaModel

from tests.pagemill.sample_encoders import bert_json, write_sentence_files

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MAX_LENGTH = 48  # tokens, as the folder's own files say; the model has 64 positions


def make_encoder(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """transformers' model, with weights that are not shy: biases and norms differ from 0 and 1."""
    raw = bert_json(**overrides)
    torch.manual_seed(seed)
    if raw["architectures"][0].startswith("Roberta"):
        model: PreTrainedModel = RobertaModel(RobertaConfig(**raw))
    else:
        model = BertModel(BertConfig(**raw))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def write_tiny_encoder(
    folder: Path, *, seed: int = 0, sentence: dict[str, Any] | None = None, **overrides: Any
) -> Path:
    """Write it into `folder` and return that; `sentence` are arguments of write_sentence_files, `overrides` config fields."""
    make_encoder(seed, **overrides).save_pretrained(folder)
    write_sentence_files(folder, **({"text": {"max_seq_length": MAX_LENGTH}} if sentence is None else sentence))
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Lower-cases and knows single characters, with padding and truncation as such files often ask for them."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    vocab = {
        token: place for place, token in enumerate((*SPECIAL, *letters, *("##" + x for x in "abcdefghijklmnopqrstu")))
    }
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
