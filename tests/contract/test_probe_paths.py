"""The paths and the JSON of `pagemill.endpoints` are the server's routes and answers."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from pagemill import endpoints
from pagemill.endpoints import OPEN_PATHS
from pagemill_server.api.app import make_app
from pagemill_server.api.service import Service
from pagemill_server.lifecycle import Capacity, Lifecycle, Phase

PATHS = (endpoints.HEALTH_PATH, endpoints.READY_PATH, endpoints.METRICS_PATH, endpoints.VERSION_PATH)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_a_route_that_needs_no_key(path: str) -> None:
    assert path in OPEN_PATHS
    client = TestClient(make_app(Service(("name",), Lifecycle(), block_size=16, api_keys=("key",))))
    assert client.get(path).status_code == (503 if path == endpoints.READY_PATH else 200)


def test_the_phases_are_the_contract() -> None:
    assert tuple(phase.value for phase in Phase) == endpoints.PHASES


def test_the_body_of_ready() -> None:
    lifecycle = Lifecycle(weights_bytes=10)
    assert lifecycle.ready_body() == {
        "ready": False,
        "phase": "Starting",
        "percent": 0,
        "bytesLoaded": 0,
        "bytesTotal": 10,
        "capacity": None,
    }
    lifecycle.capacity = Capacity(1, 2, 3, 4, 5)
    lifecycle.enter(Phase.SERVING)
    assert lifecycle.ready_body()["ready"] is True
    assert lifecycle.ready_body()["capacity"] == {
        "weightsBytes": 1,
        "kvCacheBytes": 2,
        "kvBlocks": 3,
        "maxConcurrentTokens": 4,
        "maxModelLenThatFits": 5,
    }
