"""What each API key has used, by its name: four families of the server's registry. A key that is known has all its series, at 0.

Names are the administrator's, so their number is bounded; a removed key's series stay until the process ends, as counters must.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter

from pagemill import metrics as names


class KeyMetrics:
    """Part of `Metrics`; `labels` are the values of the labels that every series has."""

    def __init__(self, registry: CollectorRegistry, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)

        def counter(name: str, help_: str, *more: str) -> Counter:
            all_labels = (names.MODEL_NAME_LABEL, names.ENGINE_LABEL, names.KEY_LABEL, *more)
            return Counter(name, help_, all_labels, registry=registry)

        self._prompt = counter(names.KEY_PROMPT_TOKENS, "prompt tokens of the key's requests")
        self._completion = counter(names.KEY_COMPLETION_TOKENS, "tokens of the answers to the key")
        self._requests = counter(names.KEY_REQUESTS, "requests of the key to the model", names.KEY_OUTCOME_LABEL)
        self._limited = counter(names.RATE_LIMITED, "requests that a limit of the key refused", names.LIMIT_LABEL)

    def know(self, keys: Iterable[str]) -> None:
        """Give these names their series."""
        for key in keys:
            self.count_tokens(key, 0, 0)
            for outcome in names.KEY_OUTCOMES:
                self._requests.labels(*self._labels, key, outcome)
            for reason in names.LIMIT_REASONS:
                self._limited.labels(*self._labels, key, reason)

    def count_request(self, key: str, outcome: str) -> None:
        self._requests.labels(*self._labels, key, outcome).inc()

    def count_tokens(self, key: str, prompt: int, completion: int) -> None:
        self._prompt.labels(*self._labels, key).inc(prompt)
        self._completion.labels(*self._labels, key).inc(completion)

    def count_limited(self, key: str, limit: str) -> None:
        self._limited.labels(*self._labels, key, limit).inc()
