"""What a model is loaded for: to generate text or to make embeddings, and how it makes them. Decided before torch is imported."""

from __future__ import annotations

from pagemill.embedding_config import LAST_TOKEN, EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles


def embedding_config(files: ModelFiles, task: str) -> EmbeddingConfig | None:
    """How embeddings are made; None: it generates. `task` is "auto" (what the model was made for), "generate" or "embed".

    Raises PagemillError for what the model can't do. A decoder whose files say nothing gives the last token's state, normalised.
    """
    if isinstance(files.config, EncoderConfig):
        if task == "generate":
            raise _refuse(files, "it is an encoder, which makes embeddings and generates no text")
        assert files.embedding is not None, "inspect gives every encoder one"
        return _sized(files.embedding, files)
    if task == "generate" and files.config.headless:
        raise _refuse(files, "it was saved without its output head, and makes embeddings only")
    if task == "generate" or (task == "auto" and files.embedding is None):
        return None
    config = files.embedding or LAST_TOKEN
    if config.pooling != "lasttoken":
        raise _refuse(files, f"its files ask for {config.pooling} pooling, and a decoder's is the last token's state")
    return _sized(config, files)


def _sized(config: EmbeddingConfig, files: ModelFiles) -> EmbeddingConfig:
    return config.sized(files.config.hidden_size, files.config.extra)


def _refuse(files: ModelFiles, why: str) -> PagemillError:
    return PagemillError(FailureReason.UNSUPPORTED_ARCHITECTURE, f"{files.path}: {why}")
