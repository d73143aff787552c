"""What the routes share: names, keys, the loaded model with its engine, text threads, metrics, where the server stands.

One object a process, made by `serve` before there is a model; `loaded` is set once there is one. Holds no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pagemill import hot_settings
from pagemill.embedding_config import EmbeddingConfig
from pagemill_server.api.body import BodyLimits
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.api.quotas import Quotas
from pagemill_server.config import EngineLimits, SchedulerConfig, ServerConfig
from pagemill_server.engine import hot
from pagemill_server.engine.errors import EngineDead, QueueFull
from pagemill_server.engine.ports import EngineClient
from pagemill_server.engine.request import EngineStats
from pagemill_server.errors import BadRequest, EngineFailed, NotFound, TooManyRequests, Unavailable
from pagemill_server.generation_config import GenerationDefaults
from pagemill_server.lifecycle import Lifecycle
from pagemill_server.metrics import Metrics
from pagemill_server.text.detokenizer import TokenBytes
from pagemill_server.text.grammar import GrammarCompiler
from pagemill_server.text.reasoning import ReasoningFormat
from pagemill_server.text.template import ChatTemplate
from pagemill_server.text.tools import ToolFormat

if TYPE_CHECKING:
    from pagemill_server.text.tokenizer import ModelTokenizer

T = TypeVar("T")

MAX_BODY_BYTES = 16 << 20  # a prompt of several million characters, or of two million token ids
BODY_STALL_SECONDS = 60.0
TEXT_THREADS = 2  # the tokenizer lets go of the GIL; more would only take the model's cores


@dataclass(frozen=True, slots=True)
class Generator:
    """What a model that generates has beside its engine. Filled by `loading`."""

    vocabulary: TokenBytes
    template: ChatTemplate | None  # None: the model has none, and no chat
    eos_token_ids: tuple[int, ...]
    grammars: GrammarCompiler
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    tool_format: ToolFormat | None = None  # None: nobody knows how the model would write a call
    reasoning: ReasoningFormat | None = None  # None: the model's answers have no marked reasoning


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that answers. Filled by `serve` from what `loading` brings. It generates or it embeds, never both."""

    engine: EngineClient
    limits: EngineLimits
    tokenizer: ModelTokenizer
    generator: Generator | None
    embedding: EmbeddingConfig | None = None

    def generating(self) -> Generator:
        """Raises BadRequest for a model that makes embeddings."""
        if self.generator is None:
            raise BadRequest(
                "The model makes embeddings and generates no text; use /v1/embeddings.",
                param="model",
                code="model_not_generative",
            )
        return self.generator

    def embedding_as(self) -> EmbeddingConfig:
        """How it makes embeddings. Raises BadRequest for a model that generates."""
        if self.embedding is None:
            raise BadRequest(
                "The model generates text and makes no embeddings; a server that is started with --task embed makes them.",
                param="model",
                code="model_not_embedding",
            )
        return self.embedding

    @property
    def context(self) -> int:
        """Tokens that one sequence may reach, prompt and output: what the model allows and the whole cache holds."""
        if not self.limits.num_blocks:  # an encoder has no cache
            return self.limits.max_model_len
        return min(self.limits.max_model_len, self.limits.num_blocks * self.limits.block_size)


class Service:
    def __init__(
        self,
        served_names: Sequence[str],
        lifecycle: Lifecycle,
        *,
        block_size: int,
        api_keys: KeyRing | Sequence[str] = (),
        stall_timeout: float = ServerConfig().stall_timeout,
        startup_timeout: float = ServerConfig().startup_timeout,
        max_body_bytes: int = MAX_BODY_BYTES,
        body_stall_seconds: float = BODY_STALL_SECONDS,
        log_content: bool = ServerConfig().log_content,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.served_names = tuple(served_names)
        self.lifecycle = lifecycle
        self.keys = api_keys if isinstance(api_keys, KeyRing) else KeyRing(api_keys)
        self.stall_timeout = stall_timeout  # /health fails when work waits and nothing has moved for so long
        self.startup_timeout = startup_timeout
        self.log_content = log_content  # prompts and outputs may stand in the access log and in traces
        self.asked_weights = dict(weights or {})  # as flags and management say; in force are the keys' own besides
        self.created = int(time.time())
        self.loaded: Loaded | None = None
        self.ending = asyncio.Event()  # set when a stop ends what still runs
        self.body_limits = BodyLimits(max_body_bytes, body_stall_seconds, self.ending)
        self.idle = asyncio.Event()  # set while nothing is in flight
        self.idle.set()
        self.in_flight = 0  # requests to the model between their arrival and the end of their answer
        self.metrics = Metrics(self.served_names[0], block_size, self.stats, lambda: lifecycle.memory)
        self.metrics.keys.know(key.name for key in self.keys.keys)
        self.quotas = Quotas(self.metrics.keys)
        self._pool = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    def stats(self) -> EngineStats | None:
        return None if self.loaded is None else self.loaded.engine.stats

    def admit(self) -> Loaded:
        """The model for a new request, or Unavailable with Retry-After while there is none to give."""
        if self.lifecycle.refusing:
            raise Unavailable("The server is shutting down.", code="shutting_down")
        if self.loaded is None:
            raise Unavailable(f"The model is loading ({self.lifecycle.percent}%).", code="model_loading")
        if self.loaded.engine.dead is not None:
            raise Unavailable("The engine has ended; the server will restart.", code="engine_dead")
        return self.loaded

    def hot_settings(self, scheduler: SchedulerConfig) -> dict[str, Any]:
        """What was asked for, by the names of `pagemill.hot_settings`: the keys' own weights aside."""
        asked = hot.as_json(scheduler) | {"weights": dict(self.asked_weights)}
        return {name: asked[name] for name in hot_settings.NAMES}

    def check_queue(self, loaded: Loaded, num_sequences: int, num_tokens: int) -> None:
        """Raises TooManyRequests with Retry-After if so much more may not wait: all of it or nothing. Without tokens it asks about
        the sequences only, before a prompt is tokenised."""
        try:
            loaded.engine.check_queue(num_sequences, num_tokens)
        except QueueFull as full:
            self.metrics.count_rejected(full.bound)
            retry = {"retry-after": f"{full.retry_after:.0f}"}
            raise TooManyRequests(str(full), code="queue_full", headers=retry) from None

    def name_of(self, asked: str | None) -> str:
        """The model's name in a response. Raises NotFound for any that is not served."""
        if asked is None:
            return self.served_names[0]
        if asked not in self.served_names:
            raise NotFound(
                f"The model `{asked[:200]}` does not exist; served: {', '.join(self.served_names)}.",
                param="model",
                code="model_not_found",
            )
        return asked

    def cut_short(self) -> EngineFailed | Unavailable:
        """Why a running request ended without an answer of its own."""
        if self.ending.is_set():
            return Unavailable("The server is shutting down.", code="shutting_down")
        return EngineFailed("The engine ended this request.")

    def refused_by(self, dead: EngineDead) -> EngineFailed | Unavailable:
        """Why the engine took no request."""
        return self.cut_short() if self.ending.is_set() else Unavailable(str(dead), code="engine_dead")

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts a request as in flight; a stop waits for these."""
        self.in_flight += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    async def in_text_thread(self, function: Callable[[], T]) -> T:
        """Run JSON, templates and tokenising where they block nobody."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
