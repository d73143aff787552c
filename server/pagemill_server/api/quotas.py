"""Every key's account, and OpenAI's headers that say how it stands. The event loop's thread only; nothing of it is kept at a stop.

Used by `api/endpoint` around a request, and by `auth` for the headers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagemill.keys import ApiKey
from pagemill_server.api.bucket import Bucket, duration
from pagemill_server.api.visit import Account, KeyVisit, Outcome, UsageCounters, Visit
from pagemill_server.errors import ApiError

Headers = list[tuple[bytes, bytes]]


class Quotas:
    """One a process; see the module's docstring. `clock` gives seconds."""

    def __init__(self, counters: UsageCounters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._clock = clock
        self._accounts: dict[str, Account] = {}  # by the keys' names

    @contextmanager
    def visit(self, key: ApiKey | None) -> Iterator[Visit]:
        """Raises TooManyRequests before anything else is done for the request. Whatever ends it, its place is free again."""
        if key is None:
            yield Visit()
            return
        visit = KeyVisit(key, self._account(key), self._counters)
        try:
            visit.enter()
            yield visit
        except ApiError as error:
            visit.fail(error)
            raise
        except Exception:
            visit.outcome = Outcome.FAILED
            raise
        except BaseException:  # cancelled
            visit.outcome = Outcome.ABORTED
            raise
        finally:
            visit.leave()

    def headers(self, key: ApiKey) -> Headers:
        """`x-ratelimit-…` for the limits that the key has, as they are now."""
        account, found = self._account(key), Headers()
        if key.requests_per_minute is not None:
            found += _headers("requests", account.requests, key.requests_per_minute)
        if key.tokens_per_minute is not None:
            account.settle(key.tokens_per_minute)
            found += _headers("tokens", account.tokens, key.tokens_per_minute)
        return found

    def _account(self, key: ApiKey) -> Account:
        if key.name not in self._accounts:
            self._accounts[key.name] = Account(self._clock)
        return self._accounts[key.name]


def _headers(what: str, bucket: Bucket, limit: int) -> Headers:
    values = {
        "limit": str(limit),
        "remaining": str(bucket.remaining(limit)),
        "reset": duration(bucket.reset(limit)),
    }
    return [(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values.items()]
