"""Which class computes which architecture. A new family is one file and one line here (and in `pagemill.native_families`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig
from pagemill_server.model import native_decoder, transformers_model, transformers_probe
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.gemma3 import Gemma3
from pagemill_server.model.interface import LayerAttention, StepAttention
from pagemill_server.model.llama import Llama
from pagemill_server.model.qwen3 import Qwen3


class Model(Protocol):
    """What the runner needs of a family. T = tokens of the step, R = rows that are sampled."""

    @property
    def attention(self) -> Sequence[LayerAttention]:
        """What the attention backend must compute, a layer each."""
        ...

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        """int64 [T], int64 [T] → hidden states [T, hidden_size], after the last norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] → float32 [R, vocab_size]."""
        ...


FAMILIES: dict[str, Callable[[Checkpoint, ModelConfig, int], Model]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
    "Qwen3ForCausalLM": Qwen3,
    "Qwen3MoeForCausalLM": Qwen3,
    "Gemma3ForCausalLM": Gemma3,
}


def make_model(checkpoint: Checkpoint, config: ModelConfig, max_positions: int) -> Model:
    """Build the model and take its weights; raises PagemillError for what can't be served."""
    family = FAMILIES.get(config.architecture) if config.native else _through_transformers
    if checkpoint.kernels is not None and native_decoder.takes(config, checkpoint.parallel.size):
        family = native_decoder.NativeLlama
    if family is None:
        raise PagemillError(
            FailureReason.UNSUPPORTED_ARCHITECTURE,
            f"architecture {config.architecture} can't be served; these can: {', '.join(FAMILIES)}",
        )
    model = family(checkpoint, config, max_positions)
    checkpoint.finish()
    return model


def _through_transformers(checkpoint: Checkpoint, config: ModelConfig, max_positions: int) -> Model:
    return transformers_probe.examine(transformers_model.load(checkpoint, config), config)
