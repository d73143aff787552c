"""The operator's errors, all of a user's making; only the edges (commands, `reconcile`) turn them into words.

    OperatorError
    ├── InvalidManifest     a manifest that the types refuse: one line a problem, each with the field's path
    └── PrometheusError     Prometheus gave no answer to trust: one line that says what and what to set

What a cluster answers is `cluster.interface.ClusterError`.
"""

from __future__ import annotations


class OperatorError(Exception):
    """The root: something that a person can put right."""


class InvalidManifest(OperatorError):
    """What is wrong with a manifest; `problems` are whole lines such as `spec.replicas: must be an integer`."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class PrometheusError(OperatorError):
    """A query has no answer, or one that is not whole; a sentence's end for `Samples.doubtful`."""
