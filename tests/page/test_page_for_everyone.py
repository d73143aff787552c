"""The live page by keyboard, pointer or screen reader, in light and dark, at any width."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.conftest import Open
from tests.page.looking import TOKEN, Looked
from tests.page.reading import LONG, PREFIX, lines, pixels, state, walk_to


def test_everything_is_reached_by_keyboard(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    server.ask(PREFIX, LONG)
    expect(lines(page, "running")).to_have_count(1)
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("""() => {
                const at = document.activeElement;
                const ring = getComputedStyle(at).outlineStyle !== "none" && parseFloat(getComputedStyle(at).outlineWidth) >= 2;
                return [at.getAttribute("aria-label") ?? at.textContent, ring];
            }""")
        )
    names = [name for name, _ in reached]
    assert names[:7] == [
        "Skip to the blocks",
        "Pause",
        "Theme: auto",
        "Forget token",
        "Block map",
        "The same as a table",
        names[6],
    ]
    assert names[6].startswith("Pick out sequence ")
    assert all(ring for name, ring in reached[:7])


def test_the_map_is_walked_by_arrows_and_picks_out_whose_a_block_is(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    server.ask(PREFIX + "c", LONG)
    expect(lines(page, "running")).to_have_count(1)
    canvas = page.get_by_role("slider", name="Block map")
    canvas.focus()
    total = int(canvas.get_attribute("aria-valuemax") or "0") + 1
    canvas.press("End")
    expect(canvas).to_have_attribute("aria-valuenow", str(total - 1))
    canvas.press("ArrowRight")
    canvas.press("ArrowDown")
    expect(canvas).to_have_attribute("aria-valuenow", str(total - 1))
    canvas.press("Home")
    expect(canvas).to_have_attribute("aria-valuenow", "0")
    canvas.press("ArrowDown")
    columns = int(canvas.get_attribute("aria-valuenow") or "0")
    assert columns > 8
    canvas.press("ArrowUp")
    canvas.press("PageDown")
    expect(canvas).to_have_attribute("aria-valuenow", str(min(10 * columns, total - 1)))

    held = canvas.evaluate("""async (canvas) => {
        const { parse } = await import("/page/runs.js");
        const token = sessionStorage.getItem("pagemill-token");
        const answer = await (await fetch("/debug/blocks", { headers: { authorization: `Bearer ${token}` } })).json();
        return parse(answer.running[0].blocks)[0];
    }""")
    walk_to(page, held)
    expect(canvas).to_have_attribute("aria-valuetext", re.compile(rf"^Block {held}: held by #\d+, tokens 0 to 15$"))
    button = lines(page, "running").first.get_by_role("button")
    canvas.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    canvas.press("Escape")
    expect(button).to_have_attribute("aria-pressed", "false")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")


def test_a_sequence_under_pointer_or_focus_stands_out_in_the_map(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    server.ask(PREFIX + "d", LONG)
    server.ask("e" * 100, LONG)
    expect(lines(page, "running")).to_have_count(2)
    page.get_by_role("button", name="Pause").click()
    plain = pixels(page)
    lines(page, "running").first.hover()
    first = pixels(page)
    lines(page, "running").nth(1).get_by_role("button").focus()
    page.mouse.move(0, 0)
    second = pixels(page)
    assert len({plain, first, second}) == 3
    page.get_by_role("button", name="Resume").focus()
    assert pixels(page) == plain


def test_focus_goes_to_the_neighbour_when_a_sequence_ends(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    server.ask("f", LONG)
    expect(lines(page, "running")).to_have_count(1)
    lines(page, "running").first.get_by_role("button").focus()
    server.hang_up()
    expect(lines(page, "running")).to_have_count(0)
    expect(page.get_by_role("heading", name="Running")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_checker_finds_nothing_that_a_screen_reader_or_weak_eyes_would_miss(
    server: Looked, tab: Open, scheme: str
) -> None:
    page = tab(server.page, color_scheme=scheme)
    expect(page.get_by_label("Management token")).to_be_visible()
    assert violations(page) == []
    page.get_by_label("Management token").fill(TOKEN)
    page.keyboard.press("Enter")
    for number in range(6):
        server.ask(PREFIX + str(number), LONG, client="team-a")
    expect(lines(page, "waiting")).to_have_count(2)
    page.get_by_text("The same as a table").click()
    expect(page.get_by_role("row", name=re.compile("^free"))).to_be_visible()
    lines(page, "running").first.get_by_role("button").click()
    assert violations(page) == []


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in found]


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_light_and_dark_are_the_systems_or_the_buttons(server: Looked, tab: Open) -> None:
    light, dark = tab(server.page_with_token, color_scheme="light"), tab(server.page_with_token, color_scheme="dark")
    colours = {"light": background(light), "dark": background(dark)}
    assert colours["light"] != colours["dark"]
    expect(state(dark)).to_have_text("Serving")
    before = pixels(dark)
    button = dark.get_by_role("button", name="Theme")
    button.click()
    expect(button).to_have_text("Theme: light")
    assert background(dark) == colours["light"]
    assert pixels(dark) != before, "the map follows"
    dark.reload()
    assert background(dark) == colours["light"], "it is remembered"
    button.click()
    button.click()
    expect(button).to_have_text("Theme: auto")
    assert background(dark) == colours["dark"]


@pytest.mark.parametrize("width", [320, 390, 768, 1080, 2200])
def test_it_fits_any_width(server: Looked, tab: Open, width: int) -> None:
    page = tab(server.page_with_token, viewport={"width": width, "height": 800})
    for number in range(5):
        server.ask(PREFIX + str(number), LONG, client="a-client-with-quite-a-long-name-" * 2)
    expect(lines(page, "waiting")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator("#map").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
