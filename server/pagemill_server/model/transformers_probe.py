"""Finds out what attention a model of transformers asks for, and whether what we then compute is what transformers computes.

First a step whose attention only looks: each layer's heads, scale, window (from the mask that the model makes) and whatever else it
passes. Then two sequences in chunks through the real paged attention, compared with transformers' own. What can't be computed, or
differs, is refused when the model is loaded. Called by `families` for models of `transformers_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pagemill.failures import PagemillError
from pagemill.model_config import ModelConfig
from pagemill_server.model.attention import TorchAttention
from pagemill_server.model.interface import AttentionMetadata, LayerAttention
from pagemill_server.model.kv_pool import KVPool
from pagemill_server.model.transformers_model import NAME, TransformersModel, mask_maker, refused, run, takes_positions

_LENGTHS = (9, 14)  # tokens of the sequences that are compared
_CUTS = (5, 13)  # where the second step begins in each: a chunk and a single token
_LONGEST_WINDOW = 64  # up to this the sequences reach beyond the window
_BLOCK = 16  # tokens
_FAR = 5000  # keys and queries up to here are asked of a mask
# What layers pass along and what changes nothing: positions are in the keys already.
_HARMLESS = (
    "dropout",
    "sliding_window",
    "position_ids",
    "cache_position",
    "use_cache",
    "output_attentions",
    "is_causal",
)


def examine(model: Any, config: ModelConfig) -> TransformersModel:
    """The model behind our interface. Raises PagemillError (UnsupportedArchitecture) for what would be run wrongly."""
    if not takes_positions(getattr(model, model.base_model_prefix)):
        raise refused(config, "its code takes no positions")
    try:
        with torch.inference_mode():
            made = TransformersModel(model, _look(model, config))
            _compare(model, made, config)
    except PagemillError:
        raise
    except Exception as error:
        raise refused(config, f"its first step failed: {error!r}") from error
    return made


def _look(model: Any, config: ModelConfig) -> tuple[LayerAttention, ...]:
    tokens = _tokens(config, 4, model.device)
    layers: dict[int, LayerAttention] = {}
    masks: list[tuple[torch.Tensor, int | None]] = []

    def make_mask(
        mask_function: Callable[..., Any], q_length: int, kv_length: int, local_size: int | None = None, **_: Any
    ) -> torch.Tensor:
        marker = torch.zeros(1, 1, q_length, kv_length)
        masks.append((marker, _window(config, mask_function, local_size)))
        return marker

    def look(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scale: Any, rest: dict[str, Any]
    ) -> torch.Tensor:
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int) or index in layers:
            raise refused(config, "its attention layers are not numbered, or one attends twice")
        _check_shapes(config, query, key, value)
        _check_rest(config, rest)
        known = [window for made, window in masks if made is mask]
        if mask is not None and not known:
            raise refused(config, "it masks attention in a way of its own")
        layers[index] = LayerAttention(known[0] if known else None, None if scale is None else float(scale))
        shaped: torch.Tensor = query.transpose(1, 2)  # which is all that matters here
        return shaped

    token = mask_maker.set(make_mask)
    try:
        run(model, tokens, torch.arange(len(tokens), device=tokens.device), look)
    finally:
        mask_maker.reset(token)
    if sorted(layers) != list(range(config.num_hidden_layers)):
        raise refused(config, f"{len(layers)} of its {config.num_hidden_layers} layers attend")
    return tuple(layers[index] for index in range(len(layers)))


def _check_shapes(config: ModelConfig, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if value.shape != key.shape:
        raise refused(config, "its values are of another size than its keys")
    found = query.shape[1], key.shape[1], query.shape[3], key.shape[3]
    wanted = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.head_dim
    if found != wanted:
        raise refused(
            config,
            f"a layer has {found[0]} query and {found[1]} key heads of {found[3]}, where its config promises {wanted[0]} and "
            f"{wanted[1]} of {wanted[3]}",
        )


def _check_rest(config: ModelConfig, rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if name == "is_causal" and value is False:
            raise refused(config, "its tokens see what comes after them")
        if name not in _HARMLESS and value is not None and value is not False:
            raise refused(config, f"its attention asks for {name}, which is not supported")


def _window(config: ModelConfig, sees: Callable[..., Any], local_size: int | None) -> int | None:
    """The window of a mask that transformers describes as a function of positions; refuses what is neither that nor causal."""
    reach = _FAR if local_size is None else local_size
    queries = torch.tensor([0, 1, 2, reach - 1, reach, reach + 1, 2 * reach + 3]).clamp(min=0)[:, None]
    keys = torch.arange(2 * reach + 5)[None]
    zero = torch.zeros((), dtype=torch.int64)
    expected = keys <= queries
    if local_size is not None:
        expected &= keys > queries - local_size
    try:
        seen = sees(zero, zero, queries, keys)
    except (IndexError, RuntimeError, TypeError, ValueError):
        seen = None
    if seen is None or not torch.equal(torch.as_tensor(seen).expand_as(expected), expected):
        raise refused(config, "its layers see tokens in another pattern than all before them or a window of these")
    return local_size


def _compare(model: Any, made: TransformersModel, config: ModelConfig) -> None:
    """Two sequences in two steps through paged attention, against transformers' own attention over each at once."""
    short = [layer.window for layer in made.attention if layer.window is not None and layer.window <= _LONGEST_WINDOW]
    more = max(short, default=0)
    lengths = [length + more for length in _LENGTHS]
    cuts = [cut + more for cut in _CUTS]
    prompts = [_tokens(config, length, model.device, seed) for seed, length in enumerate(lengths)]
    model.set_attn_implementation("eager")
    expected = [model(input_ids=prompt[None], use_cache=False).logits[0].float() for prompt in prompts]
    model.set_attn_implementation(NAME)

    blocks = -(-max(lengths) // _BLOCK)
    dtype = next(model.parameters()).dtype
    pool = KVPool(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim, 2 * blocks, _BLOCK, dtype, model.device
    )
    backend = TorchAttention(pool, made.attention)
    for starts, ends in (((0, 0), cuts), (cuts, lengths)):
        parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
        rows = [torch.arange(part.start, part.stop, device=model.device) for part in parts]
        ids = torch.cat([prompt[part] for prompt, part in zip(prompts, parts, strict=True)])
        metadata = _metadata(rows, blocks)
        logits = made.logits(made.forward(ids, torch.cat(rows), backend.begin(metadata)))
        wanted = torch.cat([some[part] for some, part in zip(expected, parts, strict=True)])
        bound = (1e-3 if dtype == torch.float32 else 0.1) * max(1.0, float(wanted.abs().max()))
        difference = float((logits - wanted).abs().max())
        if not difference <= bound:  # NaN too
            raise refused(
                config,
                f"its logits through paged attention differ from transformers' own by {difference:.3g}, so it does something "
                "between tokens that is not supported",
            )


def _metadata(rows: list[torch.Tensor], blocks: int) -> AttentionMetadata:
    """Sequence i owns blocks i * blocks and following."""
    device = rows[0].device
    slots = torch.cat([row + index * blocks * _BLOCK for index, row in enumerate(rows)])
    counts = [len(row) for row in rows]
    return AttentionMetadata(
        slot_mapping=slots,
        query_start=(0, counts[0], sum(counts)),
        seq_lens=tuple(int(row[-1]) + 1 for row in rows),
        block_tables=torch.arange(2 * blocks, device=device).view(2, blocks),
        block_size=_BLOCK,
    )


def _tokens(config: ModelConfig, count: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.vocab_size, (count,), generator=generator).to(device)
