"""What `pagemill up` prints of a status that changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pagemill_operator.condition_lines import became_ready, changed_lines

NOW = datetime(2026, 1, 2, 12, 34, 56)


def resource(*conditions: tuple[str, str, str, str], **status: Any) -> dict[str, Any]:
    said = [dict(zip(("type", "status", "reason", "message"), condition, strict=True)) for condition in conditions]
    return {"metadata": {"name": "llm"}, "status": {"conditions": said, **status}}


def test_a_new_condition_is_a_line_and_the_same_again_is_none() -> None:
    loading = resource(("Ready", "False", "Loading", "reads weights"), ("Degraded", "False", "AsWanted", "fine"))
    assert list(changed_lines(None, loading, NOW)) == [
        "12:34:56 llm Ready False Loading: reads weights",
        "12:34:56 llm Degraded False AsWanted: fine",
    ]
    assert list(changed_lines(loading, loading, NOW)) == []


def test_only_what_says_something_new_is_said() -> None:
    before = resource(("Ready", "False", "Loading", "10%"), ("Degraded", "False", "AsWanted", "fine"))
    after = resource(("Ready", "False", "Loading", "20%"), ("Degraded", "False", "AsWanted", "fine"))
    assert list(changed_lines(before, after, NOW)) == ["12:34:56 llm Ready False Loading: 20%"]


def test_loading_progress_is_a_line() -> None:
    before = resource(loading={"phase": "LoadingWeights", "percent": 10})
    after = resource(loading={"phase": "LoadingWeights", "percent": 20})
    assert list(changed_lines(before, after, NOW)) == ["12:34:56 llm Loading LoadingWeights 20%"]
    assert list(changed_lines(after, resource(), NOW)) == []


def test_ready_is_when_something_serves() -> None:
    waiting = resource(("Ready", "False", "Loading", ""))
    serving = resource(("Ready", "True", "Serving", ""), readyReplicas=1)
    zero = resource(("Ready", "True", "ScaledToZero", ""), readyReplicas=0)
    assert became_ready(None, serving)
    assert became_ready(waiting, serving)
    assert became_ready(zero, serving)
    assert not became_ready(serving, serving)
    assert not became_ready(waiting, zero)
