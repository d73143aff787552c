"""A model that `LLM` holds open: loaded from this machine or the hub, decoder or encoder, behind one face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagemill import model_source
from pagemill.embedding_config import EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill_server.engine.ports import StepEngine
from pagemill_server.lifecycle import Lifecycle
from pagemill_server.loading import download, load, load_encoder
from pagemill_server.settings import Settings
from pagemill_server.text.detokenizer import TokenBytes
from pagemill_server.text.template import ChatTemplate
from pagemill_server.text.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What `LLM` needs of a loaded model."""

    engine: StepEngine
    tokenizer: ModelTokenizer
    vocabulary: TokenBytes | None  # None: an encoder, which has no words of its own
    template: ChatTemplate | None
    embedding: EmbeddingConfig | None  # how it makes embeddings; None: it was loaded to generate
    close: Callable[[], None]  # gives threads and workers back


def open_model(settings: Settings) -> OpenModel:
    """Raises PagemillError."""
    lifecycle = Lifecycle()
    files = model_source.find(settings.model.model) or download(settings.model.model, lifecycle)
    if isinstance(files.config, EncoderConfig):
        encoder = load_encoder(settings, files, lifecycle)
        return OpenModel(encoder.engine, encoder.tokenizer, None, None, encoder.embedding, lambda: None)
    loaded = load(settings, files, lifecycle)
    return OpenModel(
        loaded.engine, loaded.tokenizer, loaded.vocabulary, loaded.template, loaded.embedding, loaded.close
    )
