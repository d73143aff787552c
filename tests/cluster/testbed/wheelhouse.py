"""The wheels that the images install, fetched once on this machine, which knows how to reach its index.

A build in a container does not have this machine's certificates and settings, so it is given a folder.
Keyed by what pyproject.toml asks for. Called by images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from testbed.cache import cluster_cache, hash_files

PYTHON = "3.11"  # the base image's


def ensure_wheelhouse(repository: Path) -> Path:
    """A folder with every wheel that the images' extras, and building ours, need."""
    with (repository / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *extras["server"],
        *extras["transformers"],
        *extras["operator"],
        *project["build-system"]["requires"],
    ]
    folder = cluster_cache() / f"wheelhouse-{hash_files([], *sorted(wanted))}"
    if not folder.exists():
        print("  wheels: fetching (3 GB, most of it torch)", flush=True)
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--dest",
                str(unfinished),
                "--no-cache-dir",
                "--only-binary=:all:",
                "--python-version",
                PYTHON,
                *wanted,
            ],
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            check=True,
        )
        for old in cluster_cache().glob("wheelhouse-*"):
            if old != unfinished:
                shutil.rmtree(old)
        unfinished.rename(folder)
    return folder
