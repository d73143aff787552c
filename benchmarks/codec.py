"""A model's tokenizer as the workloads need it: the very one that our server uses, without special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pagemill.model_files import inspect, resolve
from pagemill_server.text.tokenizer import load_tokenizer


class ModelCodec:
    """Text to token ids and back, exactly as the model's own vocabulary has them."""

    def __init__(self, model: str) -> None:
        self._backend = load_tokenizer(inspect(resolve(model))).backend

    def encode(self, text: str) -> Sequence[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


def load(model: str) -> ModelCodec:
    """The tokenizer of a model on this machine; raises PagemillError when it is not there."""
    return ModelCodec(model)
