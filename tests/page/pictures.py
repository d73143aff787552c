"""Makes the pictures of docs/page.md anew, from SmolLM2 answering a few clients at once:

PYTHONPATH=.:server:kernels .venv/bin/python tests/page/pictures.py
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path

import httpx

from tests.page.looking import Looked, browsing, looked_at
from tests.server.real_model import NAME as MODEL
from tests.server.real_model import real_model

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SCHEMES = ("light", "dark")
TOPICS = (
    "the tides",
    "sourdough",
    "a lighthouse",
    "the moons of Jupiter",
    "chess openings",
    "bees",
    "old bridges",
    "glass",
)
INSTRUCTIONS = (
    "You are the assistant of a small museum. You answer visitors kindly, in whole sentences, and you say what you do not know. "
    "You never invent a date. If somebody asks for the way, you name the hall and the floor. " * 3
)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    limits = {"memory_bytes": 160 << 20, "max_num_seqs": 6, "max_num_batched_tokens": 256}
    with looked_at(real_model(), name=MODEL, **limits) as server, browsing() as browser:
        pages = [
            browser.new_context(color_scheme=scheme, viewport={"width": 1360, "height": 860}).new_page()
            for scheme in SCHEMES
        ]
        for page in pages:
            page.goto(server.page_with_token)
        numbers = count()
        until = time.monotonic() + 60  # so that the lines under the figures have something to tell
        while time.monotonic() < until:
            keep_asking(server, numbers)
            time.sleep(0.5)
        for scheme, page in zip(SCHEMES, pages, strict=True):
            page.screenshot(path=IMAGES / f"page-{scheme}.png")


def keep_asking(server: Looked, numbers: count[int], at_once: int = 8) -> None:
    """Every other one after the same instructions, so that there are blocks to share; of different lengths."""
    server.threads = [thread for thread in server.threads if thread.is_alive()]
    while len(server.threads) < at_once:
        number = next(numbers)
        instructions = INSTRUCTIONS if number % 2 else ""
        prompt = f"{instructions}Tell me about {TOPICS[number % len(TOPICS)]}."
        server.ask(prompt, 120 + 70 * (number % 5), client=("tour-guide", "kiosk", "night-shift")[number % 3])


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPError as error:
        sys.exit(str(error))
