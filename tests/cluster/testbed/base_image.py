"""The image below ours: Debian with Python, from the machine's Debian mirror by debootstrap, once.

A container registry is never asked, so that the tests need none. `PAGEMILL_BASE_IMAGE` names another that
buildah's storage holds. Called by images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbed.buildah import build_image, has_image
from testbed.cache import cluster_cache
from testbed.errors import TestbedError

SUITE = "bookworm"
# pip brings setuptools; the rest is what minbase lacks of python:3.11-slim.
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
IMAGE = f"localhost/pagemill-base:{SUITE}-1"
UNNEEDED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")


def ensure_base_image() -> str:
    """The name of the base image, which buildah's storage then holds."""
    chosen = os.environ.get("PAGEMILL_BASE_IMAGE")
    if chosen:
        return chosen
    if not has_image(IMAGE):
        print("  base image: Debian with Python by debootstrap (about 90 s)", flush=True)
        with tempfile.TemporaryDirectory(dir=cluster_cache()) as folder:
            _build(Path(folder))
    return IMAGE


def _build(context: Path) -> None:
    root = context / "root"
    command = ["nice", "debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if outcome.returncode != 0:
        raise TestbedError(f"{' '.join(command)}\n{outcome.stdout[-2000:]}")
    for name in UNNEEDED:
        shutil.rmtree(root / name)
        (root / name).mkdir()
    # debootstrap leaves this machine's name servers in it.
    (root / "etc" / "resolv.conf").unlink(missing_ok=True)
    subprocess.run(["tar", "--create", "--file", str(context / "root.tar"), "-C", str(root), "."], check=True)
    shutil.rmtree(root)
    (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    build_image(IMAGE, context)
