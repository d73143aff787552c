"""All of a server's configs together, as `cli` makes them and `serve` hands them out in slices."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagemill_server.config import CacheConfig, ChatOptions, ModelOptions, SchedulerConfig, ServerConfig


@dataclass(frozen=True, slots=True)
class Settings:
    model: ModelOptions
    cache: CacheConfig
    scheduler: SchedulerConfig
    server: ServerConfig
    chat: ChatOptions = field(default_factory=ChatOptions)
