"""One GET of the API server as the administrator, without kubectl: what a test looks at several times a second would keep a core
busy with starting programs.

Knows the kubeconfig that the testbed writes, and no other. Called by `cluster`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

TIMEOUT = 30  # seconds


def fetch(kubeconfig: Path, path: str) -> tuple[int, dict[str, Any]]:
    """The answer's status and object; OSError or HTTPException where none came."""
    config = json.loads(kubeconfig.read_text())
    api, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trust = ssl.create_default_context(cafile=api["certificate-authority"])
    address = urllib.parse.urlsplit(api["server"]).netloc
    with contextlib.closing(http.client.HTTPSConnection(address, context=trust, timeout=TIMEOUT)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {user['token']}"})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    return answer.status, found
