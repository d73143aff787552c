"""The system's Chromium: found, or installed as root, or said how. And what it is started with.

Knows nothing of the page. Called by conftest and by pictures.
"""

from __future__ import annotations

import os
import shutil
import subprocess

PACKAGE = "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Nothing but the page: no update, no sync, no first-run talk.
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class NotPossibleHere(Exception):
    """There is no Chromium, and this user can't install one; the message says what to do."""


def chromium() -> str:
    """Its path. Raises NotPossibleHere, and RuntimeError where the installation should work and does not."""
    found = _found()
    if found is None:
        _install()
        found = _found()
    if found is None:
        raise RuntimeError(f"the Debian package {PACKAGE} is installed and brings none of: {', '.join(NAMES)}")
    return found


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _install() -> None:
    line = f"apt-get update && apt-get install -y --no-install-recommends {PACKAGE} fonts-dejavu-core"
    if not shutil.which("apt-get"):
        raise NotPossibleHere(f"the page's tests need Chromium: one of {', '.join(NAMES)} on the PATH")
    if os.geteuid() != 0:
        raise NotPossibleHere(f"the page's tests need Chromium: sudo sh -c '{line}'")
    print(f"installing a browser: {line}", flush=True)  # noqa: T201  it takes a minute, and nothing else says why
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    outcome = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:  # no reason to skip: a suite that skips would look green
        raise RuntimeError(f"`{line}` failed: {outcome.stderr.strip()[-500:]}")
