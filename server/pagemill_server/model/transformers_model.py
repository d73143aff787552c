"""A decoder without a native family, computed by transformers' own code with our paged attention behind its attention interface.

Slower than a native family, and its bits may depend on the batch. Nothing of a repository's own code is run, weights come through
our reader, and a first step (`transformers_probe`) must give transformers' own logits before anything is served. The one place that
imports transformers; called by `families`. https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_config import ModelConfig
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.interface import LayerAttention, StepAttention

NAME = "pagemill"  # of our attention in transformers' registers
Attend = Callable[
    ..., torch.Tensor
]  # (module, query, key, value, mask, scale, rest); heads first, [1, heads, T, head_dim]

log = logging.getLogger(__name__)
_attend: ContextVar[Attend] = ContextVar("attend")
mask_maker: ContextVar[Callable[..., torch.Tensor | None]] = ContextVar("mask_maker")  # set by the probe only


class TransformersModel:
    """Behind `families.Model`."""

    def __init__(self, model: Any, attention: tuple[LayerAttention, ...]) -> None:
        self.attention = attention
        self._base = getattr(model, model.base_model_prefix)
        self._head, self._given = _head_of(model)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: StepAttention) -> torch.Tensor:
        """int64 [T], int64 [T] → hidden states [T, hidden_size], after the last norm."""

        def paged(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
            rows = [heads[0].transpose(0, 1).contiguous() for heads in (query, key, value)]
            seen = attend(rows[0], rows[1], rows[2], module.layer_idx)
            return seen[None]

        return run(self._base, token_ids, positions, paged).last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] → float32 [R, vocab_size]."""
        self._given.hidden = hidden[None]
        try:
            ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
            return self._head(input_ids=ids, use_cache=False).logits[0].float()  # type: ignore[no-any-return]
        finally:
            self._given.hidden = None


def load(checkpoint: Checkpoint, config: ModelConfig) -> Any:
    """transformers' model with its weights. Raises PagemillError for what transformers doesn't have."""
    transformers = _import()
    _register(transformers)
    kind, own_config = _classes(transformers, config)
    log.info(
        "%s has no native family: transformers' code computes it around our attention, which is slower",
        config.architecture,
    )
    weights = checkpoint.take_all()
    try:
        model, told = kind.from_pretrained(
            None,
            config=own_config,
            state_dict=weights,
            dtype=next(iter(weights.values())).dtype,
            attn_implementation=NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, RuntimeError, TypeError, KeyError, AttributeError, ImportError) as error:
        raise refused(config, f"transformers can't load it: {error}") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys", "error_msgs"):
        if told[what]:
            raise refused(
                config, f"its checkpoint is another model's than its config says: {what} {sorted(told[what])[0]}"
            )
    return model.to(next(iter(weights.values())).device).eval()


def run(module: Any, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> Any:
    """One row of tokens int64 [T] at positions int64 [T] through a module of transformers, its attention done by `attend`."""
    token = _attend.set(attend)
    try:
        return module(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
    finally:
        _attend.reset(token)


def refused(config: ModelConfig, why: str) -> PagemillError:
    """A model that transformers knows and that can't be served."""
    return PagemillError(
        FailureReason.UNSUPPORTED_ARCHITECTURE,
        f"{config.architecture} can't be served through transformers: {why}",
    )


def _import() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise PagemillError(
            FailureReason.UNSUPPORTED_ARCHITECTURE,
            "this model has no native family and needs the transformers package: pip install 'pagemill[transformers]'",
        ) from None


def _register(transformers: Any) -> None:
    def attention(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **rest: Any
    ) -> Any:
        return _attend.get()(module, query, key, value, attention_mask, scaling, rest), None

    def mask(**asked: Any) -> torch.Tensor | None:
        maker = mask_maker.get(None)
        return None if maker is None else maker(**asked)  # a step's tokens are told apart by their block tables

    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, mask)


def _classes(transformers: Any, config: ModelConfig) -> tuple[Any, Any]:
    """The model's class and its config. Only transformers' own classes are ever looked for."""
    auto = importlib.import_module("transformers.models.auto")
    raw = dict(config.extra)
    known = auto.configuration_auto.CONFIG_MAPPING_NAMES
    kind = getattr(transformers, config.architecture, None)
    if raw.get("model_type") not in known or not isinstance(kind, type):
        raise refused(config, f"transformers {transformers.__version__} does not have it; a newer version might")
    try:
        own_config = auto.CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"transformers can't read the config of {config.architecture}: {error}"
        ) from error
    base = getattr(kind, "base_model_prefix", "")
    if not base or not getattr(kind, "_supports_attention_backend", False):
        raise refused(config, "transformers' code for it has no interface for attention")
    return kind, own_config


class _Output:
    """What a decoder returns: its last hidden states, and nothing of what else one may return."""

    def __init__(self, hidden: torch.Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: Any) -> Any:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        return None


class _Given(torch.nn.Module):
    """Stands where the decoder stands under the head, for any part of it that is called, and gives what it is told to."""

    hidden: torch.Tensor | None = None

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self._stands_for = (decoder,)  # in a tuple, so that it is none of this module's own

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(self.hidden)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stands_for[0], name)
        return self if isinstance(found, torch.nn.Module) else found


def _head_of(model: Any) -> tuple[Any, _Given]:
    """The model without its decoder: what its own code makes of hidden states (scales, caps, the product)."""
    given = _Given(getattr(model, model.base_model_prefix))
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: given}
    return head, given


def takes_positions(module: Any) -> bool:
    """Whether a module of transformers can be told each token's position."""
    return "position_ids" in inspect.signature(module.forward).parameters
