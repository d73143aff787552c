"""The live page in a browser, over a real server that generates: who is let in, and that it shows how the server stands."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Route, expect

from pagemill.model_files import ModelFiles
from tests.page.conftest import Open
from tests.page.looking import TOKEN, Looked, looked_at
from tests.page.reading import LONG, PREFIX, lines, state, until_value, walk_to


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
