"""The real models: all-MiniLM-L6-v2, SmolLM2-135M-Instruct, and transformers' model of the latter's very GGUF dequantised to
float32, as the judge."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from pagemill.failures import PagemillError
from pagemill.model_files import ModelFiles, inspect, resolve

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


@functools.cache
def real_model() -> ModelFiles:
    """Skips the test where the model is not on this machine; `make test` brings it."""
    return _found(NAME)


@functools.cache
def real_encoder() -> ModelFiles:
    """The same of the embedding model."""
    return _found(ENCODER)


def _found(name: str) -> ModelFiles:
    try:
        return inspect(resolve(name, os.environ))
    except PagemillError as error:
        pytest.skip(error.failure.message)


@functools.cache
@torch.inference_mode(
    False
)  # whoever asks first: weights made in that mode could not be turned into float64 by a later test
def judge() -> LlamaForCausalLM:
    """transformers' own conversion of the file, weights in float32."""
    files = real_model()
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(files.path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied
    model.tie_weights()
    assert model.dtype == torch.float32
    return model


def greedy_after(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """What transformers says at each place of the answer and after it, when everything before is as given: len(answer) + 1 ids.

    Equal to `answer` at every place means that its greedy decoding is `answer`, by induction, in one pass.
    """
    ids, model = torch.tensor([[*prompt, *answer]]), judge()
    with torch.inference_mode():
        logits = model(ids, use_cache=False, logits_to_keep=len(answer) + 1).logits
    return [int(token) for token in logits[0].argmax(-1)]
