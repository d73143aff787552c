"""From a text's last hidden states to its vector, as the model's files say. Pure; called by the runners, once a text.

Each text is pooled by itself, at its own shape, so that a vector doesn't depend on what was computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from pagemill.embedding_config import EmbeddingConfig

_POOLED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls": lambda hidden: hidden[0],
    "mean": lambda hidden: hidden.mean(0),
    "max": lambda hidden: hidden.amax(0),
    "lasttoken": lambda hidden: hidden[-1],
}


def embed(hidden: torch.Tensor, config: EmbeddingConfig) -> tuple[float, ...] | None:
    """Hidden states [tokens, hidden_size] → the vector; None when it is not finite."""
    vector = _POOLED[config.pooling](hidden.float())
    if config.normalize:
        vector = torch.nn.functional.normalize(vector, dim=0)
    if not bool(vector.isfinite().all()):
        return None
    return tuple(vector.tolist())
