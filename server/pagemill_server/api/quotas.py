"""What each key has used, and whether it may use more: requests and tokens a minute, requests at once.

Limits are buckets: what was used drains evenly, a whole limit in a minute, so a key that was quiet may use its limit at once and
goes on at its rate. A request takes one request when it arrives, its prompt's tokens when they are counted, and the answer's as
they come: nobody knows before how many those will be, so a bucket may be overdrawn by the answers that run, and what is overdrawn
is waited for. While nothing of it is used, it takes one prompt of any length. What is refused costs nothing. The event loop's
thread only. Used by `api/endpoint`, and by `auth` for the headers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from pagemill_server.api.keys import ApiKey
from pagemill_server.errors import ApiError, TooManyRequests

_MINUTE = 60.0  # seconds
_DUST = 1e-6  # of a token: what rounding may leave
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


class UsageCounters(Protocol):
    """Where usage is counted: `key_metrics`."""

    def count_request(self, key: str, outcome: Outcome) -> None: ...

    def count_tokens(self, key: str, prompt: int, completion: int) -> None: ...

    def count_limited(self, key: str, limit: Limit) -> None: ...


class Bucket:
    """What was used of one limit. The limit may change between two calls; what was used stays."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used = 0.0
        self._at = clock()

    def used(self, limit: int) -> float:
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at) * limit / _MINUTE)
        self._at = now
        return self._used

    def take(self, amount: float, limit: int) -> None:
        """A negative amount gives back."""
        self._used = max(0.0, self.used(limit) + amount)

    def wait(self, amount: float, limit: int) -> float:
        """Seconds until so much may be used; 0: now."""
        over = self.used(limit) + min(amount, limit) - limit
        return over * _MINUTE / limit if over > _DUST else 0.0


class Account:
    """One key's: kept for as long as the process lives, whatever becomes of the key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.requests, self.tokens = Bucket(clock), Bucket(clock)
        self.visits: set[Visit] = set()  # requests that are being answered

    def settle(self, limit: int) -> None:
        """Charge what running answers have got by now."""
        for visit in self.visits:
            self.tokens.take(visit.newly_produced(), limit)


class Visit:
    """One request, from its arrival to the end of its answer. Without a key it costs nothing and is counted nowhere."""

    def __init__(self, key: ApiKey | None = None, account: Account | None = None) -> None:
        self.outcome = Outcome.SUCCESS  # unless an error or the client ends it otherwise
        self.prompt_tokens = 0
        self._key, self._account = key, account
        self._produced: Callable[[], int] = int
        self._charged = 0  # tokens of the answer

    def reserve(self, prompt_tokens: int, produced: Callable[[], int] = int) -> None:
        """To be called once, before anything is computed. `produced` says at any time how many tokens the answer has.

        Raises TooManyRequests.
        """
        if self._key is not None and self._account is not None and (limit := self._key.tokens_per_minute) is not None:
            self._account.settle(limit)
            _check(self._account.tokens, prompt_tokens, limit, self._key, Limit.TOKENS)
            self._account.tokens.take(prompt_tokens, limit)
        self.prompt_tokens, self._produced = prompt_tokens, produced

    @property
    def completion_tokens(self) -> int:
        return self._produced()

    def newly_produced(self) -> int:
        """Tokens of the answer since it was last asked."""
        new = self._produced() - self._charged
        self._charged += new
        return new

    def refund_prompt(self) -> None:
        """Nothing came of it."""
        if self._key is not None and self._account is not None and (limit := self._key.tokens_per_minute) is not None:
            self._account.tokens.take(-self.prompt_tokens, limit)
        self.prompt_tokens = 0


class Limited(TooManyRequests):
    """A limit of the key's own was reached."""

    def __init__(self, limit: Limit, message: str, seconds: float) -> None:
        after = {"retry-after": str(max(1, math.ceil(seconds)))}
        super().__init__(message, code="rate_limit_exceeded", headers=after)
        self.limit = limit


class Quotas:
    """Every key's account."""

    def __init__(self, counters: UsageCounters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def visit(self, key: ApiKey | None) -> Iterator[Visit]:
        """Raises TooManyRequests before anything else is done for the request. Whatever ends it, the key's place is free again."""
        if key is None:
            yield Visit()
            return
        account = self._account(key)
        visit = Visit(key, account)
        try:
            self._enter(key, account)
            account.visits.add(visit)
            yield visit
        except ApiError as error:
            visit.outcome = _outcome(error)
            self._refund(key, account, visit, error)
            raise
        except Exception:
            visit.outcome = Outcome.FAILED
            raise
        except BaseException:  # cancelled
            visit.outcome = Outcome.ABORTED
            raise
        finally:
            if key.tokens_per_minute is not None:
                account.settle(key.tokens_per_minute)
            account.visits.discard(visit)
            self._counters.count_tokens(key.name, visit.prompt_tokens, visit.completion_tokens)
            self._counters.count_request(key.name, visit.outcome)

    def headers(self, key: ApiKey) -> list[tuple[bytes, bytes]]:
        """OpenAI's `x-ratelimit-…` for the limits that the key has, as they are now."""
        account, found = self._account(key), []
        if key.requests_per_minute is not None:
            found += _headers("requests", account.requests, key.requests_per_minute)
        if key.tokens_per_minute is not None:
            account.settle(key.tokens_per_minute)
            found += _headers("tokens", account.tokens, key.tokens_per_minute)
        return found

    def _account(self, key: ApiKey) -> Account:
        return self._accounts.setdefault(key.name, Account(self._clock))

    def _enter(self, key: ApiKey, account: Account) -> None:
        """Every limit is asked before any is charged."""
        if key.max_concurrency is not None and len(account.visits) >= key.max_concurrency:
            message = (
                f"The key {key.name} may have {key.max_concurrency} requests at once, and as many are being answered."
            )
            raise Limited(Limit.CONCURRENCY, message, _CONCURRENCY_RETRY)
        if (tokens := key.tokens_per_minute) is not None:
            account.settle(tokens)
            _check(account.tokens, 1, tokens, key, Limit.TOKENS)
        if (requests := key.requests_per_minute) is not None:
            _check(account.requests, 1, requests, key, Limit.REQUESTS)
            account.requests.take(1, requests)

    def _refund(self, key: ApiKey, account: Account, visit: Visit, error: ApiError) -> None:
        if isinstance(error, Limited):
            self._counters.count_limited(key.name, error.limit)
        if not visit.completion_tokens:
            visit.refund_prompt()
        entered = visit in account.visits
        if entered and visit.outcome is Outcome.REFUSED and key.requests_per_minute is not None:
            account.requests.take(-1, key.requests_per_minute)


def _check(bucket: Bucket, amount: int, limit: int, key: ApiKey, what: Limit) -> None:
    if not (seconds := bucket.wait(amount, limit)):
        return
    message = (
        f"Rate limit reached for the key {key.name} on {what} per min: limit {limit}, "
        f"used {math.ceil(bucket.used(limit))}, requested {amount}. Try again in {duration(seconds)}."
    )
    raise Limited(what, message, seconds)


def _outcome(error: ApiError) -> Outcome:
    if error.status in (429, 503):
        return Outcome.REFUSED
    return Outcome.INVALID if error.status < 500 else Outcome.FAILED


def _headers(what: str, bucket: Bucket, limit: int) -> list[tuple[bytes, bytes]]:
    used = bucket.used(limit)
    values = {
        "limit": str(limit),
        "remaining": str(max(0, math.floor(limit - used))),
        "reset": duration(used * _MINUTE / limit),
    }
    return [(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values.items()]


def duration(seconds: float) -> str:
    """As OpenAI spells it: 120ms, 7s, 6m0s, 1h0m5s. Rounded up."""
    if 0 < seconds <= 0.999:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
