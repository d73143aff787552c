"""What a test reads off the live page, and how it walks the map; the answers that it has the server give meanwhile."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

LONG = 20_000  # tokens: of an unhurried server an answer that is under way until the test hangs up
PREFIX = "Once upon a time there was a prefix that everybody had. " * 4


def state(page: Page) -> Locator:
    return page.locator("#state-word")


def until_value(page: Page, name: str, pattern: str) -> None:
    figure = page.locator("#numbers > div", has_text=name).locator(".value")
    expect(figure).to_have_text(re.compile(pattern))


def lines(page: Page, which: str) -> Locator:
    return page.locator(f"#{which} > li")


def walk_to(page: Page, block: int) -> None:
    """The map's cursor, by its keys."""
    canvas = page.get_by_role("slider", name="Block map")
    canvas.press("Home")
    canvas.press("ArrowDown")
    expect(canvas).not_to_have_attribute("aria-valuenow", "0")
    columns = int(canvas.get_attribute("aria-valuenow") or "0")
    down, right = divmod(block, columns)
    canvas.press("Home")
    for key in [*["ArrowDown"] * down, *["ArrowRight"] * right]:
        canvas.press(key)


def pixels(page: Page) -> str:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return str(page.locator("#map").evaluate("canvas => canvas.toDataURL()"))
