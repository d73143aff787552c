"""The system packages that a cluster needs: checks them, installs them as root, or says how.

Owns packages.txt. Knows nothing of what the packages are used for. Called by cluster and conftest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from testbed.errors import NotPossibleHere, TestbedError

LIST = Path(__file__).resolve().parent.parent / "packages.txt"


def wanted_packages() -> tuple[str, ...]:
    """The names in packages.txt, comments and blank lines left out."""
    lines = (line.split("#")[0].strip() for line in LIST.read_text().splitlines())
    return tuple(line for line in lines if line)


def missing_packages(*more: str) -> tuple[str, ...]:
    """Those that dpkg does not list as installed; all of them where there is no dpkg. `more`: what only some tests need."""
    wanted = (*wanted_packages(), *more)
    if not shutil.which("dpkg-query"):
        return wanted
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n", *wanted],
        capture_output=True,
        text=True,
        check=False,  # exits 1 when it does not know one of them
    ).stdout.split("\n")
    return tuple(name for name in wanted if f"installed {name}" not in listed)


def require_root() -> None:
    """Raise NotPossibleHere unless this user is root: namespaces, mounts and runc need it."""
    if os.geteuid() != 0:
        raise NotPossibleHere("the cluster tests need root; this runs them: sudo -E make test")


def ensure_packages(*more: str) -> None:
    """Install what is missing, with a line that says so; `more` is what only some tests need.

    Raises NotPossibleHere where that can't be, and TestbedError where it should work and does not.
    """
    missing = missing_packages(*more)
    if not missing:
        return
    line = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(missing)}"
    if not shutil.which("apt-get"):
        raise NotPossibleHere(f"the cluster tests need these Debian packages: {' '.join(missing)}")
    if os.geteuid() != 0:
        raise NotPossibleHere(f"the cluster tests need root and: sudo sh -c '{line}'")
    print(f"installing {len(missing)} system packages: {line}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    outcome = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:  # no reason to skip: the user is root, and a suite that skips would look green
        raise TestbedError(f"`{line}` failed: {outcome.stderr.strip()[-500:]}")
