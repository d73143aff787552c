"""A model that `LLM` holds open: loaded from this machine or the hub, decoder or encoder, behind one face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagemill import model_source
from pagemill.embedding_config import EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill_server.api.service import Generator
from pagemill_server.engine.ports import StepEngine
from pagemill_server.lifecycle import Lifecycle
from pagemill_server.loading import download, load
from pagemill_server.settings import Settings
from pagemill_server.text.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What `LLM` needs of a loaded model."""

    engine: StepEngine
    tokenizer: ModelTokenizer
    generator: Generator | None  # None: it makes embeddings
    embedding: EmbeddingConfig | None  # how it makes embeddings; None: it was loaded to generate
    encoder: bool  # it could not generate if it were asked to
    close: Callable[[], None]  # gives threads and workers back


def open_model(settings: Settings) -> OpenModel:
    """Raises PagemillError."""
    lifecycle = Lifecycle()
    files = model_source.find(settings.model.model) or download(settings.model.model, lifecycle)
    loaded = load(settings, files, lifecycle)
    encoder = isinstance(files.config, EncoderConfig)
    return OpenModel(loaded.engine, loaded.tokenizer, loaded.generator, loaded.embedding, encoder, loaded.close)
