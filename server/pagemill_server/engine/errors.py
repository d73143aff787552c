"""What the engine raises. The API turns `RequestRefused` into a 400 and `EngineDead` into a 503.

EngineError
├── RequestRefused        a client's mistake, raised by `submit` before anything is queued
│   ├── RequestTooLarge   the prompt leaves no room for a token, in the model's length or in the cache
│   ├── TextTooLong       the text of an embedding is longer than the model takes
│   ├── EmbedsOnly        text is wanted of an encoder
│   ├── UnknownTokenId    a token id that the model has no embedding for
│   └── InvalidSampling   a sampling setting outside its bounds; a ValueError too, for Python users
├── QueueFull             as much waits as may; raised before anything is queued
├── EngineDead            nothing is taken any more; the message says why
├── CopyFailed            a block could not be copied between the tiers: raised by every step from then on
├── RunnerLost            what computes is not all there any more: no later step can succeed
├── SchedulerStuck        work waits and none of it can be scheduled: a bug, never a load
└── KVCacheCorrupted      a block is lost, or owned twice: a bug; serving on would mix up answers
"""

from __future__ import annotations


class EngineError(Exception):
    """The root of the engine's own errors."""


class RequestRefused(EngineError):
    """The request can't be served, now or later; the message is for the client."""


class RequestTooLarge(RequestRefused):
    def __init__(self, prompt_tokens: int, limit: int, limited_by: str, room: int = 1) -> None:
        """`room`: tokens that must fit beside the prompt, one or, where none is sampled, 0."""
        beside = ", and one token more must fit" if room else ""
        super().__init__(
            f"The prompt has {prompt_tokens} tokens{beside}, but {limited_by} is {limit} tokens. "
            f"Shorten the prompt to at most {limit - room} tokens."
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class TextTooLong(RequestRefused):
    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"The text has {tokens} tokens, but the model takes at most {limit}. Shorten it, or ask for it to be cut."
        )
        self.tokens = tokens
        self.limit = limit


class EmbedsOnly(RequestRefused):
    def __init__(self) -> None:
        super().__init__("The model is an encoder: it makes embeddings and generates no text.")


class UnknownTokenId(RequestRefused):
    def __init__(self, token_id: int, vocab_size: int) -> None:
        super().__init__(f"Token id {token_id} is outside the model's vocabulary of {vocab_size} tokens.")
        self.token_id = token_id
        self.vocab_size = vocab_size


class InvalidSampling(RequestRefused, ValueError):
    """`field` is the setting's name in `SamplingParams`; `trouble` goes on the sentence that its name begins."""

    def __init__(self, field: str, trouble: str) -> None:
        super().__init__(f"{field} {trouble}.")
        self.field = field
        self.trouble = trouble


class QueueFull(EngineError):
    """Too much waits (a 429). `bound` is the setting that was reached, as `pagemill.metrics.REJECTION_REASONS` spells it."""

    def __init__(self, message: str, bound: str, retry_after: float) -> None:
        super().__init__(message)
        self.bound = bound
        self.retry_after = retry_after  # seconds


class EngineDead(EngineError):
    """The engine has ended, by failure or by `stop`."""


class CopyFailed(EngineError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(f"A copy between the device and the host tier failed: {type(cause).__name__}: {cause}")


class RunnerLost(EngineError):
    """A process that a model is divided among has ended or is out of step; the message says which."""


class SchedulerStuck(EngineError):
    """Raised in place of spinning for ever on work that never runs."""


class KVCacheCorrupted(EngineError):
    """The books of the block pool don't add up."""
