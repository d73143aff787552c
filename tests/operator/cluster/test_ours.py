"""What is taken for the operator's own, and what is left to whoever made it."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.cluster.ours import is_ours
from pagemill_operator.render import render
from pagemill_operator.resource import read
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored

CHILDREN = render(read(stored(modelCache={"size": "1Gi"})), SETTINGS)
APPLIED = [{"manager": "pagemill-operator", "operation": "Apply"}]


def found(labels: dict[str, str] | None, fields: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "chat", "labels": labels, "managedFields": fields}}


@pytest.mark.parametrize("child", CHILDREN, ids=lambda child: str(child["kind"]))
def test_a_child_is_ours_by_its_labels_alone(child: dict[str, Any]) -> None:
    assert is_ours(found({**child["metadata"]["labels"], "more": "x"}), child)


@pytest.mark.parametrize(
    "labels",
    [
        None,
        {"app.kubernetes.io/managed-by": "Helm"},
        {"app.kubernetes.io/managed-by": "pagemill-operator"},
        {"pagemill.dev/deployment": "chat"},
        {"pagemill.dev/deployment": "other", "app.kubernetes.io/managed-by": "pagemill-operator"},
    ],
)
def test_without_them_it_is_ours_if_we_have_applied_it(labels: dict[str, str] | None) -> None:
    child = CHILDREN[0]
    assert not is_ours(found(labels), child)
    assert not is_ours(found(labels, [{"manager": "kubectl", "operation": "Apply"}]), child)
    assert is_ours(found(labels, APPLIED), child)
