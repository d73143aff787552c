"""Which images the tests run, from what they are built, and when one has to be built again.

An image's tag is a hash of all that goes into it, so a tag that buildah's storage holds is current. Knows
nothing of containerd. Called by conftest, cluster.py and demo_cluster.py.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.base_image import ensure_base_image
from testbed.binaries import Binaries
from testbed.buildah import Mount, build_image, has_image
from testbed.cache import cache_root, cluster_cache, exclusive, hash_files
from testbed.node import PAUSE_IMAGE
from testbed.wheelhouse import ensure_wheelhouse

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "Dockerfile", ".dockerignore", "examples/tiny_models.py")
PACKAGES = ("pagemill", "operator", "server", "kernels")
MODELS = ("HuggingFaceTB/SmolLM2-135M-Instruct",)


@dataclass(frozen=True)
class Images:
    """The names of Pagemill's images, and of all that a cluster has to hold."""

    server: str
    operator: str
    pause: str = PAUSE_IMAGE

    def all(self) -> list[str]:
        """Every image."""
        return [self.pause, self.server, self.operator]


def ensure_images(binaries: Binaries) -> Images:
    """Build what is not current; says what it does and how long it takes."""
    with exclusive("images"):
        ensure_pause(binaries)
        tag = _source_hash()
        images = Images(f"localhost/pagemill-server:{tag}", f"localhost/pagemill-operator:{tag}")
        if not (has_image(images.server) and has_image(images.operator)):
            print("building Pagemill's images (the first time about 6 min, then seconds)", flush=True)
            _build(images)
    return images


def ensure_gpu_image(binaries: Binaries) -> str:
    """The server with the CUDA build of torch and a C compiler: built to see that it can be; nothing here runs it."""
    ensure_images(binaries)  # the wheels and the base image are theirs
    name = f"localhost/pagemill-server-gpu:{_source_hash()}"
    if not has_image(name):  # without the lock: nobody else builds it, and it takes minutes
        build_image(name, REPOSITORY, target="server", arguments=_arguments(), mounts=_mounts())
    return name


def ensure_pause(binaries: Binaries) -> str:
    """The sandbox image: one static program."""
    if not has_image(PAUSE_IMAGE):
        with tempfile.TemporaryDirectory() as folder:
            context = Path(folder)
            shutil.copy2(binaries.path("pause"), context / "pause")
            (context / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
            build_image(PAUSE_IMAGE, context)
    return PAUSE_IMAGE


def models_folder() -> Path:
    """Where this machine's models are; `make model` puts them there."""
    chosen = os.environ.get("PAGEMILL_MODELS")
    return Path(chosen) if chosen else cache_root() / "models"


def _build(images: Images) -> None:
    arguments, mounts = _arguments(), _mounts()
    for target, name in (("operator", images.operator), ("server", images.server)):
        print(f"  {target} … ", end="", flush=True)
        started = time.monotonic()
        build_image(
            name,
            REPOSITORY,
            target=target,
            arguments=arguments | ({"VARIANT": "cpu"} if target == "server" else {}),
            contexts={"models": _gather_models()} if target == "server" else {},
            mounts=mounts,
        )
        print(f"{time.monotonic() - started:.0f} s", flush=True)


def _arguments() -> dict[str, str]:
    version = re.search(r'__version__ = "(.+)"', (REPOSITORY / "pagemill" / "__init__.py").read_text())
    assert version
    base = {"BASE_IMAGE": ensure_base_image(), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheelhouse"}
    return base | {"VERSION": version[1], "REVISION": _source_hash()}


def _mounts() -> tuple[Mount, ...]:
    return (Mount(ensure_wheelhouse(REPOSITORY), "/wheelhouse"),)


def _gather_models() -> Path:
    """A folder with just the models that the image is to have, as hard links."""
    gathered = cluster_cache() / "models"
    shutil.rmtree(gathered, ignore_errors=True)
    for model in MODELS:
        shutil.copytree(models_folder() / model, gathered / model, copy_function=os.link)
    return gathered


def _source_hash() -> str:
    files = [REPOSITORY / name for name in SOURCES]
    for package in PACKAGES:
        found = (REPOSITORY / package).rglob("*")
        files += sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)
    return hash_files(files, *(str(file.relative_to(REPOSITORY)) for file in files))
