"""What one of several processes has of each layer: its attention heads and its part of the MLP. Pure numbers.

A divided config is a `ModelConfig` like any other, so whoever asks for sizes need not know. Embeddings, the output head, norms and
an MoE's router are each process's own. Read by `memory_fit` and by the server's loader.
"""

from __future__ import annotations

from dataclasses import replace

from pagemill.model_config import ModelConfig


def divided(config: ModelConfig, processes: int) -> ModelConfig:
    """One process's part; what `indivisible` finds fault with must not be asked for."""
    if processes == 1:
        return config
    experts = config.experts
    return replace(
        config,
        num_attention_heads=config.num_attention_heads // processes,
        num_key_value_heads=config.num_key_value_heads // processes,
        intermediate_size=config.intermediate_size // processes,
        experts=experts and replace(experts, intermediate_size=experts.intermediate_size // processes),
    )


def indivisible(config: ModelConfig, processes: int) -> str | None:
    """Why the model can't be divided among so many; None when it can."""
    if processes == 1:
        return None
    if not config.native:
        return f"{config.architecture} is computed by transformers' code, which can't be divided among processes"
    parts = {
        "attention heads": config.num_attention_heads,
        "key-value heads": config.num_key_value_heads,
        "MLP columns": config.intermediate_size,
    }
    if config.experts is not None:
        parts["expert columns"] = config.experts.intermediate_size
    for name, count in parts.items():
        if count % processes:
            return f"{count} {name} can't be divided among {processes} processes"
    return None
