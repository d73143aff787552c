"""What an API server does to a manifest is no difference; what a hand does is."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator.same import reads_as_written

SAME: list[tuple[Any, Any]] = [
    ({"a": 1}, {"a": 1, "defaulted": True}),
    ({"value": ""}, {}),
    ({"enabled": False, "list": [], "count": 0, "nothing": None}, {}),
    ({"limits": {"cpu": "2.0", "memory": "2048Mi"}}, {"limits": {"cpu": "2", "memory": "2Gi"}}),
    ({"requests": {"cpu": "1500m"}}, {"requests": {"cpu": "1.5"}}),
    ({"sizeLimit": "1024Mi"}, {"sizeLimit": "1Gi"}),
    ({"limits": {"memory": "1048576Ki"}}, {"limits": {"memory": "1Gi"}}),
    ({"requests": {"memory": "1024Gi"}}, {"requests": {"memory": "1Ti"}}),
    ({"requests": {"cpu": "100000u"}}, {"requests": {"cpu": "100m"}}),
    ({"requests": {"cpu": "0.0001"}}, {"requests": {"cpu": "100u"}}),
    ({"resourceFieldRef": {"divisor": "1024Ki"}}, {"resourceFieldRef": {"divisor": "1Mi"}}),
    ({"list": [{"name": "a", "x": 1}]}, {"list": [{"name": "injected"}, {"name": "a", "x": 1, "y": 2}]}),
    ({"args": ["--a", "1"]}, {"args": ["--a", "1"]}),
    ({"mounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},) * 2,
    ({"emptyDir": {}}, {"emptyDir": {}}),
    ({"labels": {"a": "1"}}, {"labels": {"a": "1", "b": "another's"}}),
    ({"selector": {"a": "1"}}, {"selector": {"a": "1"}}),
]
DIFFERENT: list[tuple[Any, Any]] = [
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {}),
    ({"a": 1}, None),
    ({"a": {"b": 1}}, {"a": 3}),
    ({"replicas": 0}, {"replicas": 1}),
    ({"flag": True}, {}),
    ({"args": ["--a", "1"]}, {"args": ["--a", "1", "--b"]}),
    ({"args": ["--a"]}, {"args": "--a"}),
    ({"list": [{"name": "a", "x": 1}]}, {"list": [{"name": "a", "x": 2}]}),
    ({"list": [{"name": "a"}]}, {"list": []}),
    ({"limits": {"memory": "2Gi"}}, {"limits": {"memory": "3Gi"}}),
    ({"limits": {"memory": "2Gi"}}, {"limits": {"memory": "much"}}),
    ({"image": "1024Mi"}, {"image": "1Gi"}),  # looks like a quantity and is none
    ({"emptyDir": {}}, {"hostPath": {"path": "/"}}),
    ({"selector": {"a": "1"}}, {"selector": {"a": "1", "b": "by hand"}}),  # a Service that would find no pod
    ({"selector": {"a": "1"}}, {}),
    ({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1", "b": "by hand"}}),
]


@pytest.mark.parametrize(("wanted", "live"), SAME)
def test_same(wanted: Any, live: Any) -> None:
    assert reads_as_written(wanted, live)


@pytest.mark.parametrize(("wanted", "live"), DIFFERENT)
def test_different(wanted: Any, live: Any) -> None:
    assert not reads_as_written(wanted, live)
