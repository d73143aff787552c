"""One request as its key's limits see it: what it takes, what it gives back, when its place is free again.

It takes one request when it arrives, its prompt's tokens when they are counted, and the answer's as they come: nobody knows before
how many those will be, so the answers that run may overdraw the limit. What is refused costs nothing. The event loop's thread only.
Made by `quotas`; `api/endpoint` holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from pagemill.keys import ApiKey
from pagemill_server.api.bucket import Bucket, duration
from pagemill_server.errors import ApiError, TooManyRequests

_CONCURRENCY_RETRY = 1  # seconds: nobody knows when an answer of the key's will end


class Outcome(StrEnum):
    """How a request ended; the words of `pagemill.metrics.KEY_OUTCOMES`."""

    SUCCESS = "success"
    INVALID = "invalid"  # the client's mistake
    REFUSED = "refused"  # a limit, a full queue, a server that doesn't serve now
    FAILED = "failed"  # ours, also in the middle of a stream
    ABORTED = "aborted"  # the client hung up


class Limit(StrEnum):
    """Which limit was reached; the words of `pagemill.metrics.LIMIT_REASONS`."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


class Limited(TooManyRequests):
    """A limit of the key's own was reached."""

    def __init__(self, limit: Limit, message: str, seconds: float) -> None:
        after = {"retry-after": str(max(1, math.ceil(seconds)))}
        super().__init__(message, code="rate_limit_exceeded", headers=after)
        self.limit = limit


class UsageCounters(Protocol):
    """Where usage is counted: `key_metrics`."""

    def count_request(self, key: str, outcome: Outcome) -> None: ...

    def count_tokens(self, key: str, prompt: int, completion: int) -> None: ...

    def count_limited(self, key: str, limit: Limit) -> None: ...


class Account:
    """What a name has used. Kept for as long as the process lives, whatever becomes of the key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.requests, self.tokens = Bucket(clock), Bucket(clock)
        self.visits: set[KeyVisit] = set()  # requests that are being answered

    def settle(self, limit: int) -> None:
        """Charge what running answers have got by now."""
        for visit in self.visits:
            self.tokens.take(visit.newly_produced(), limit)


class Visit:
    """From a request's arrival to the end of its answer. This one has no key: it costs nothing and is counted nowhere."""

    def __init__(self) -> None:
        self.outcome = Outcome.SUCCESS  # unless an error or the client ends it otherwise

    def reserve(self, prompt_tokens: int, produced: Callable[[], int] = int) -> None:
        """To be called once, before anything is computed. `produced` says at any time how many tokens the answer has.

        Raises TooManyRequests.
        """

    def leave(self) -> None:
        """Its place is free. To be called before the answer's last byte goes out: who has read it may ask again at once.

        A second time nothing happens.
        """


class KeyVisit(Visit):
    """One of a key's."""

    def __init__(self, key: ApiKey, account: Account, counters: UsageCounters) -> None:
        super().__init__()
        self._key, self._account, self._counters = key, account, counters
        self._prompt_tokens = 0
        self._produced: Callable[[], int] = int
        self._charged = 0  # tokens of the answer
        self._left = False

    def enter(self) -> None:
        """Every limit is asked before any is charged. Raises Limited."""
        key, account = self._key, self._account
        if key.max_concurrency is not None and len(account.visits) >= key.max_concurrency:
            sentence = (
                f"The key {key.name} may have {key.max_concurrency} requests at once, and as many are being answered."
            )
            raise Limited(Limit.CONCURRENCY, sentence, _CONCURRENCY_RETRY)
        if (tokens := key.tokens_per_minute) is not None:
            account.settle(tokens)
            self._check(Limit.TOKENS, account.tokens, 1, tokens)
        if (requests := key.requests_per_minute) is not None:
            self._check(Limit.REQUESTS, account.requests, 1, requests)
            account.requests.take(1, requests)
        account.visits.add(self)

    def reserve(self, prompt_tokens: int, produced: Callable[[], int] = int) -> None:
        if (limit := self._key.tokens_per_minute) is not None:
            self._account.settle(limit)
            self._check(Limit.TOKENS, self._account.tokens, prompt_tokens, limit)
            self._account.tokens.take(prompt_tokens, limit)
        self._prompt_tokens, self._produced = prompt_tokens, produced

    def newly_produced(self) -> int:
        """Tokens of the answer since it was last asked."""
        new = self._produced() - self._charged
        self._charged += new
        return new

    def fail(self, error: ApiError) -> None:
        """It is answered with an error. What was refused is given back, and a prompt of which nothing came."""
        self.outcome = _outcome(error)
        if isinstance(error, Limited):
            self._counters.count_limited(self._key.name, error.limit)
        if not self._produced():
            if (tokens := self._key.tokens_per_minute) is not None:
                self._account.tokens.take(-self._prompt_tokens, tokens)
            self._prompt_tokens = 0
        requests = self._key.requests_per_minute
        if self.outcome is Outcome.REFUSED and requests is not None and self in self._account.visits:
            self._account.requests.take(-1, requests)

    def leave(self) -> None:
        if self._left:
            return
        self._left = True
        if self._key.tokens_per_minute is not None:
            self._account.settle(self._key.tokens_per_minute)
        self._account.visits.discard(self)
        self._counters.count_tokens(self._key.name, self._prompt_tokens, self._produced())
        self._counters.count_request(self._key.name, self.outcome)

    def _check(self, what: Limit, bucket: Bucket, amount: int, limit: int) -> None:
        if seconds := bucket.wait(amount, limit):
            sentence = (
                f"Rate limit reached for the key {self._key.name} on {what} per min: limit {limit}, "
                f"used {math.ceil(bucket.used(limit))}, requested {amount}. Try again in {duration(seconds)}."
            )
            raise Limited(what, sentence, seconds)


def _outcome(error: ApiError) -> Outcome:
    if error.status in (429, 503):
        return Outcome.REFUSED
    return Outcome.INVALID if error.status < 500 else Outcome.FAILED
