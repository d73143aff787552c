"""The live page in a browser, over a real server that generates."""

from __future__ import annotations

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, Route, expect

from pagemill.model_files import ModelFiles
from tests.page.conftest import Open
from tests.page.looking import PATIENCE, TOKEN, Looked, looked_at

expect.set_options(timeout=PATIENCE)

LONG = 20_000  # tokens: of an unhurried server an answer that is under way until the test hangs up
PREFIX = "Once upon a time there was a prefix that everybody had. " * 4


def state(page: Page) -> Locator:
    return page.locator("#state-word")


def value(page: Page, name: str) -> str:
    """The figure of that name."""
    return page.locator("#numbers > div", has_text=name).locator(".value").inner_text()


def until_value(page: Page, name: str, pattern: str) -> None:
    figure = page.locator("#numbers > div", has_text=name).locator(".value")
    expect(figure).to_have_text(re.compile(pattern))


def lines(page: Page, which: str) -> Locator:
    return page.locator(f"#{which} > li")


def test_it_asks_for_the_token_and_keeps_it_for_the_tab_only(server: Looked, tab: Open) -> None:
    page = tab(server.page)
    field = page.get_by_label("Management token")
    expect(field).to_be_focused()
    field.fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_have_text("The server refused that token.")
    expect(page.locator("#view")).to_be_hidden()

    field.fill("no blanks, please")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no blanks")

    field.fill(TOKEN)
    field.press("Enter")
    expect(state(page)).to_have_text("Serving")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]

    page.reload()
    expect(state(page)).to_have_text("Serving")
    page.get_by_role("button", name="Forget token").click()
    expect(field).to_be_focused()
    expect(page.locator("#view")).to_be_hidden()
    page.reload()
    expect(field).to_be_visible()
    assert page.url == server.page, "the form sends nothing by itself"


def test_a_token_in_the_address_opens_it_and_is_gone_from_there(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    expect(state(page)).to_have_text("Serving")
    assert page.url == server.page
    assert page.evaluate("history.length") == 2, "about:blank and the page: no entry with the token"


def test_it_follows_an_answer_from_its_beginning_to_its_end(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    expect(page.get_by_text("Nothing runs.")).to_be_visible()
    server.ask("hello", LONG, client="team-a")
    line = lines(page, "running").first
    expect(line).to_contain_text("team-a")
    expect(line).to_contain_text("Prompt 5 / 5")
    expect(line).to_contain_text("/ 20,000")
    bar = line.get_by_role("progressbar", name="Output")
    first = float(bar.evaluate("bar => bar.value"))
    expect(bar).not_to_have_js_property("value", first)
    assert float(bar.evaluate("bar => bar.value")) > first
    until_value(page, "Running", "^1of 4$")
    until_value(page, "Output tokens", r"^[1-9][\d.,]*/s$")
    until_value(page, "Time to first token", r"^[\d.,]+(ms|s)$")
    until_value(page, "Time per token", r"^[\d.,]+(ms|s)$")
    expect(page.locator("#blocks-summary")).to_contain_text(re.compile(r"^[1-9]\d* held"))

    server.hang_up()
    expect(page.get_by_text("Nothing runs.")).to_be_visible()
    expect(page.locator("#blocks-summary")).to_contain_text(re.compile(r"^0 held · [1-9]\d* cached"))


def test_a_prefix_that_two_have_is_shown_as_shared(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    server.ask(PREFIX + "a", LONG)
    expect(lines(page, "running")).to_have_count(1)
    server.ask(PREFIX + "b", LONG)
    expect(lines(page, "running")).to_have_count(2)
    expect(lines(page, "running").nth(1)).to_contain_text("cached")

    page.get_by_text("The same as a table").click()
    row = page.get_by_role("row", name=re.compile("^#")).first
    expect(row.locator("td").nth(1)).to_have_text("14")  # 16 tokens a block, 225 characters
    first = int(row.locator("td").nth(2).inner_text().split("-")[0].split(",")[0])

    page.mouse.move(0, 0)
    canvas = page.get_by_role("slider", name="Block map")
    canvas.focus()
    walk_to(page, first)
    expect(canvas).to_have_attribute(
        "aria-valuetext", re.compile(rf"^Block {first}: shared by #\d+, #\d+, tokens 0 to 15$")
    )
    expect(page.locator("#readout")).to_contain_text("shared by")


def test_who_finds_no_place_is_seen_waiting(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    for number in range(6):
        server.ask(f"{number}", LONG, client=f"team-{number}")
    expect(lines(page, "running")).to_have_count(4)
    expect(lines(page, "waiting")).to_have_count(2)
    expect(lines(page, "waiting").first).to_contain_text("1 prompt tokens")
    until_value(page, "Waiting", "^2$")
    server.hang_up()
    expect(page.get_by_text("Nobody waits.")).to_be_visible()


def test_what_a_client_calls_itself_is_text(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    name = "<img src=x onerror=alert(1)><b>me</b>"
    server.ask("a", LONG, client=name)
    expect(lines(page, "running").first.locator(".note")).to_have_text(name)
    assert page.locator("main img").count() == 0


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


def test_paused_it_asks_nothing_and_says_of_when_it_is(server: Looked, tab: Open) -> None:
    page = tab(server.page_with_token)
    expect(state(page)).to_have_text("Serving")
    page.get_by_role("button", name="Pause").click()
    expect(state(page)).to_have_text("Paused · Serving")
    expect(page.locator("#notice")).to_contain_text("this is how it stood at")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    server.ask("g", LONG)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as when one comes back to the tab
    page.wait_for_timeout(2500)
    assert asked == []
    expect(lines(page, "running")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    expect(lines(page, "running")).to_have_count(1)
    expect(page.locator("#notice")).to_be_empty()


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


def test_a_drain_and_then_a_server_that_is_gone(files: ModelFiles, tab: Open) -> None:
    with looked_at(files, unhurried=True) as server:
        page = tab(server.page_with_token)
        server.ask("h", LONG)
        expect(lines(page, "running")).to_have_count(1)
        server.living.signal()
        expect(state(page)).to_have_text("Draining")
        expect(page.locator("#notice")).to_contain_text("new requests are refused; 1 request is in flight")
        expect(page.get_by_role("status")).to_contain_text("The server is draining")
        server.hang_up()
        server.living.end()
        expect(state(page)).to_have_text("Not answering")
        expect(page.locator("#notice")).to_contain_text("Last heard of at")
        expect(page.locator("body")).to_have_class("old")


def test_a_hundred_thousand_blocks(server: Looked, tab: Open) -> None:
    page = tab(server.page)
    body = large()

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    page.route("**/debug/blocks", answer)
    page.get_by_label("Management token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#blocks-summary")).to_contain_text("64,000 held · 20,000 cached · 16,000 free")
    canvas = page.get_by_role("slider", name="Block map")
    expect(canvas).to_have_attribute("aria-valuemax", "99999")
    expect(lines(page, "running")).to_have_count(64)
    expect(page.locator("#waiting-summary")).to_have_text("next first · 4,901 more behind")
    canvas.focus()
    canvas.press("End")
    expect(canvas).to_have_attribute("aria-valuetext", "Block 99999: free")


def large() -> dict[str, object]:
    """As /debug/blocks would tell of a large GPU: 64 sequences that share a prefix, in blocks all over the pool."""
    sequences = [
        {
            "id": number,
            "request": f"cmpl-{number}",
            "index": 0,
            "state": "running",
            "client": "",
            "priority": 0,
            "prompt_tokens": 16_000,
            "cached_tokens": 0,
            "computed_tokens": 15_990,
            "output_tokens": 0,
            "max_tokens": 100,
            "preemptions": 0,
            "queued_seconds": 0.1,
            "age_seconds": 5.0,
            "blocks": ",".join(str(block) for block in range(number, 64_000, 64)),
        }
        for number in range(64)
    ]
    waiting = [{**sequences[0], "id": 1000, "state": "waiting", "blocks": ""} for _ in range(1)]
    counters = ("prompt_tokens", "generation_tokens", "preemptions", "prefix_cache_queries", "prefix_cache_hits")
    engine = {f"{name}_total": 0 for name in (*counters, "host_hits", "sequences")}
    settings = {"policy": "fcfs", "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    gauges = {"running": 64, "waiting": 4902, "waiting_tokens": 1, "queue_seconds": 9.0, "step_tokens": 64}
    return {
        "server": {
            "model": "org/large",
            "version": "0",
            "phase": "Serving",
            "percent": 100,
            "trouble": None,
            "dead": False,
            "in_flight": 64,
            "refusing": False,
            "max_model_len": 1,
        },
        "at": 1.0,
        "age_seconds": 0.0,
        "engine": {**engine, **settings, **gauges, "kv_cache_usage": 0.64},
        "latency": {"window_seconds": 60, "time_to_first_token": None, "inter_token": None},
        "blocks": {
            "size": 16,
            "total": 100_000,
            "free": 16_000,
            "held": 64_000,
            "cached": 20_000,
            "parked": 0,
            "cached_blocks": "64000-83999",
            "parked_blocks": "",
            "host": {"total": 0, "used": 0},
        },
        "running": sequences,
        "waiting": waiting,
    }
