"""Whether a model has a token id. Asked at both doors, the API's and the engines': one id beyond the table ends a step."""

from __future__ import annotations

from collections.abc import Sequence


def unknown_id(ids: Sequence[int], vocab_size: int) -> int | None:
    """The first that the model does not have; `vocab_size` is the embedding table's. Quick where all are known."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return None
    return next(token for token in ids if not 0 <= token < vocab_size)
