"""A model that is loaded and computed in a process of its own, seen from the one that serves: what `loading` is for a thread.

Here are the tokenizer, the templates and the limits; torch is never imported. Called by `serve`, on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pagemill.embedding_config import EmbeddingConfig
from pagemill.model_files import ModelFiles
from pagemill_server.api.service import Generator, Loaded
from pagemill_server.config import ModelOptions
from pagemill_server.engine import process
from pagemill_server.engine.process import EngineChild, EngineProcess
from pagemill_server.engine.wire import Entered, Job, Progress, Started, ToFront
from pagemill_server.lifecycle import Lifecycle, Phase
from pagemill_server.loading import front_parts
from pagemill_server.settings import Settings
from pagemill_server.text.tokenizer import ModelTokenizer

PROCESS_ENV = "PAGEMILL_ENGINE_PROCESS"  # 1: the engine has a process of its own on CPU too, 0: never
_PROGRAM = ("-m", "pagemill_server.engine_program")
_DEVICES = Path("/dev")
_DEVICE_FILES = ("nvidia[0-9]*", "dxg")  # of the driver; the latter under Windows' Linux


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What loading brings; its engine runs already."""

    child: EngineChild
    started: Started
    tokenizer: ModelTokenizer
    generator: Generator | None
    embedding: EmbeddingConfig | None

    def client(self, stepped: Callable[[int], None]) -> Loaded:
        """As the API has it. `stepped` is told the tokens of each step."""
        engine = EngineProcess(self.child, self.started, stepped)
        return Loaded(engine, self.started.limits, self.tokenizer, self.generator, self.embedding)

    def trouble(self) -> str | None:
        """The engine's own word (`dead`) says it all."""
        return None

    def close(self) -> None:
        self.child.close()


def is_wanted(options: ModelOptions, environ: Mapping[str, str] = os.environ, devices: Path = _DEVICES) -> bool:
    """Whether the engine gets a process of its own: where it may compute on a GPU, which torch alone knows for sure."""
    if (forced := environ.get(PROCESS_ENV)) in ("0", "1"):
        return forced == "1"
    if options.device != "auto":
        return options.device == "cuda"
    hidden = environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    return not hidden and any(file for pattern in _DEVICE_FILES for file in devices.glob(pattern))


def load(settings: Settings, files: ModelFiles, lifecycle: Lifecycle) -> RemoteModel:
    """Raises PagemillError; nothing of it runs then."""
    child = EngineChild(_PROGRAM)
    try:
        # Beside the child, which imports torch meanwhile.
        tokenizer, generator, embedding = front_parts(settings, files)
        started = process.load(child, Job(settings, files), lambda message: _told(lifecycle, message))
    except BaseException:
        child.close()
        raise
    lifecycle.memory, lifecycle.capacity = started.memory, started.capacity
    return RemoteModel(child, started, tokenizer, generator, embedding)


def _told(lifecycle: Lifecycle, message: ToFront) -> None:
    match message:
        case Entered(phase):
            lifecycle.enter(Phase(phase))
        case Progress(done, total):
            lifecycle.progress(done, total)
