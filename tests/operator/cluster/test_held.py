"""What waits at the gateways of a namespace: a sum is a lower bound, and none is known only where all have said so."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.cluster.held import held_in_all, waiting
from pagemill_operator.gateway.metrics import WAITING


def said(**waiting: float) -> str:
    lines = [f'{WAITING}{{deployment="{name}"}} {value}' for name, value in waiting.items()]
    return "\n".join((f"# TYPE {WAITING} gauge", *lines, "# TYPE up gauge", "up 1", ""))


def pod(ready: bool = True, **metadata: str) -> dict[str, Any]:
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (said(chat=3, other=1), 3),
        (said(chat=0), 0),
        (said(other=1), None),
        (said(chat=float("nan")), None),
        ("<html>not here</html>", None),
        ("", None),
    ],
)
def test_one_gateway_speaks_of_a_deployment_by_its_name(text: str, found: int | None) -> None:
    assert waiting(text, "chat") == found


@pytest.mark.parametrize(
    ("pods", "held"),
    [
        ([], None),
        ([(pod(), said(chat=1)), (pod(), said(chat=2))], 3),
        ([(pod(), said(chat=0)), (pod(), said(chat=0))], 0),
        ([(pod(), said(chat=2)), (pod(), None)], 2),  # a gateway that is dead must not keep a model asleep
        ([(pod(), said(chat=0)), (pod(), None)], None),
        ([(pod(), said(chat=0)), (pod(False), None)], 0),  # nobody waits at one that takes none
        ([(pod(), said(chat=0)), (pod(deletionTimestamp="2026-01-01T00:00:00Z"), None)], 0),
        ([(pod(False), said(chat=4))], 4),  # one that drains may still hold some
        ([(pod(False), None)], None),
    ],
)
def test_all_of_them_together(pods: list[tuple[dict[str, Any], str | None]], held: int | None) -> None:
    assert held_in_all("chat", pods) == held
