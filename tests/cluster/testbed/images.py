"""Which images the tests run, from what they are built, and when one has to be built again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from testbed.binaries import Binaries
from testbed.buildah import build_image, has_image
from testbed.cache import exclusive
from testbed.node import PAUSE_IMAGE


def ensure_pause(binaries: Binaries) -> str:
    """The sandbox image: one static program."""
    with exclusive("images"):
        if not has_image(PAUSE_IMAGE):
            with tempfile.TemporaryDirectory() as folder:
                context = Path(folder)
                shutil.copy2(binaries.path("pause"), context / "pause")
                (context / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
                build_image(PAUSE_IMAGE, context)
    return PAUSE_IMAGE
