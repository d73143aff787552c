"""The page's modules that only reckon, each in the browser that it is written for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.page.looking import PATIENCE, Looked

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(browser: Browser, shared_server: Looked) -> Iterator[Call]:
    """`call(module, expression, *values)`: the expression, in which `m` is the module and `v` the values."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(shared_server.page)

    def run(module: str, expression: str, *values: object) -> Any:
        script = f"async (v) => {{ const m = await import('/page/{module}.js'); return {expression}; }}"
        return page.evaluate(script, list(values))

    yield run
    page.close()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [("", []), ("7", [7]), ("3-5,9,8-6", [3, 4, 5, 9, 8, 7, 6]), ("0-1,0-1", [0, 1, 0, 1])],
)
def test_runs_are_read_as_they_are_written(call: Call, text: str, blocks: list[int]) -> None:
    assert call("runs", "m.parse(v[0])", text) == blocks


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        ("seconds", 0.0031, "3.1 ms"),
        ("seconds", 0.0099499, "9.9 ms"),
        ("seconds", 0.03849, "38 ms"),
        ("seconds", 0.9996, "1.00 s"),
        ("seconds", 12.345, "12.3 s"),
        ("seconds", 180, "3 min"),
        ("perSecond", 3.14, "3.1/s"),
        ("perSecond", 12_345.6, "12,346/s"),
        ("percent", 0.0, "0%"),
        ("percent", 0.034, "3.4%"),
        ("percent", 1.0, "100%"),
    ],
)
def test_numbers_are_said_as_people_read_them(call: Call, function: str, value: float, words: str) -> None:
    assert call("format", f"m.words(m.{function}(v[0]))", value) == words


def answer(at: float, **counters: int) -> dict[str, Any]:
    names = (
        "generation_tokens",
        "prompt_tokens",
        "preemptions",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "sequences",
    )
    engine = {f"{name}_total": counters.get(name, 0) for name in names}
    gauges = {"kv_cache_usage": 0.5, "running": 1, "waiting": 0}
    return {"at": at, "engine": engine | gauges, "latency": {"time_to_first_token": None, "inter_token": None}}


def history(call: Call, answers: list[dict[str, Any]], expression: str) -> Any:
    return call(
        "history",
        f"(() => {{ const h = new m.History(); v[0].forEach((a) => h.add(a)); return {expression}; }})()",
        answers,
    )


def test_rates_are_differences_over_the_last_seconds(call: Call) -> None:
    answers = [answer(float(at), generation_tokens=10 * at) for at in range(5)] + [answer(5.0, generation_tokens=40)]
    assert history(call, answers[:1], "h.newest.output") is None
    assert history(call, answers[:5], "h.newest.output") == 10
    assert history(call, answers, "h.newest.output") == pytest.approx(20 / 3), (
        "2.5 s back there is the answer of second 2"
    )


def test_what_rose_in_the_last_minute(call: Call) -> None:
    answers = [answer(float(at), preemptions=at) for at in range(0, 100, 5)]
    assert history(call, answers, "h.rise('preemptions_total')") == 60
    assert history(call, answers[:2], "h.rise('preemptions_total')") == 5
    assert history(call, [], "h.rise('preemptions_total')") == 0


def test_another_process_begins_a_new_history(call: Call) -> None:
    answers = [answer(100.0, generation_tokens=1000, sequences=9), answer(105.0, generation_tokens=5, sequences=1)]
    assert history(call, answers, "[h.series('at'), h.newest.output]") == [[105.0], None]


def test_the_same_look_twice_and_one_before_the_engine_is_there_count_for_nothing(call: Call) -> None:
    answers = [answer(1.0) | {"engine": None}, answer(2.0), answer(2.0)]
    assert history(call, answers, "h.series('at')") == [2.0]


def server(**changes: Any) -> dict[str, Any]:
    calm = {"phase": "Serving", "percent": 100, "trouble": None, "dead": False, "in_flight": 0, "refusing": False}
    return {"server": calm | changes, "age_seconds": 0.0}


@pytest.mark.parametrize(
    ("found", "state", "word", "part"),
    [
        (server(), "serving", "Serving", ""),
        (server() | {"age_seconds": 8.0}, "serving", "Serving", "8 s ago"),
        (server(phase="LoadingWeights", percent=45), "loading", "Loading weights 45%", "is loading"),
        (
            server(phase="Draining", in_flight=3),
            "draining",
            "Draining",
            "still answers what comes; 3 requests are in flight",
        ),
        (server(phase="Draining", refusing=True), "draining", "Draining", "new requests are refused"),
        (
            server(trouble="nothing has moved for 90 s while work waits"),
            "stalled",
            "Stalled",
            "Nothing has moved for 90 s",
        ),
        (
            server(trouble="the engine ended: no device", dead=True),
            "ended",
            "Engine ended",
            "The engine ended: no device",
        ),
    ],
)
def test_how_the_server_stands_is_said(call: Call, found: dict[str, Any], state: str, word: str, part: str) -> None:
    said = call("state", "m.standing(v[0])", found)
    assert (said["state"], said["word"]) == (state, word)
    assert part in said["sentence"]
    assert bool(part) == bool(said["sentence"])


def test_numbers_that_count_along_are_not_spoken_again(call: Call) -> None:
    kinds = call(
        "state", "v.map((a) => m.kind(m.standing(a)))", server(phase="Draining"), server(phase="Draining", in_flight=2)
    )
    assert kinds[0] == kinds[1]


def test_a_newcomer_gets_a_colour_that_nobody_has_and_keeps_it(call: Call) -> None:
    colours = call(
        "palette",
        """(() => {
            const p = new m.Palette();
            p.assign([1, 2, 3]);
            const before = [1, 2, 3].map((id) => p.of(id));
            p.assign([3, 4, 5]);
            return [before, [3, 4, 5].map((id) => p.of(id))];
        })()""",
    )
    before, after = colours
    assert len(set(before)) == 3
    assert after[0] == before[2]
    assert len(set(after)) == 3


def test_a_block_is_as_full_as_its_tokens_are_computed(call: Call) -> None:
    found = {
        "blocks": {"total": 6, "size": 4, "cached_blocks": "4", "parked_blocks": "5"},
        "running": [
            {"id": 1, "computed_tokens": 6, "blocks": "0-2"},
            {"id": 2, "computed_tokens": 4, "blocks": "0"},
        ],
    }
    words = call(
        "ownership",
        "(() => { const o = m.ownership(v[0]); return [0,1,2,3,4,5].map((b) => m.describe(o, b)); })()",
        found,
    )
    assert words == [
        "Block 0: shared by #1, #2, tokens 0 to 3",
        "Block 1: held by #1, tokens 4 to 7, 2 of 4 computed",
        "Block 2: held by #1, tokens 8 to 11, 0 of 4 computed",
        "Block 3: free",
        "Block 4: cached, held by nobody",
        "Block 5: parked until a copy into it is done",
    ]


@pytest.mark.parametrize("total", [1, 7, 113, 4096, 100_000])
def test_every_block_has_a_place_of_its_own_inside_the_width(call: Call, total: int) -> None:
    width = 607
    seen = call(
        "grid",
        """(() => {
            const g = m.gridFor(v[0], v[1]);
            let wrong = 0, widest = 0;
            for (let block = 0; block < v[0]; block += 1) {
                const [x, y] = m.corner(g, block);
                wrong += m.cellAt(g, x + g.cell / 2, y + g.cell / 2) !== block;
                widest = Math.max(widest, x + g.cell);
            }
            return [wrong, widest, m.cellAt(g, 0, g.height + 50), g.cell];
        })()""",
        total,
        width,
    )
    wrong, widest, outside, cell = seen
    assert wrong == 0
    assert widest <= width
    assert outside is None
    assert cell >= 1


def test_a_line_has_a_gap_where_nothing_was_measured(call: Call) -> None:
    path = call("numbers", "m.sparkline(v[0])", [1, None, 2, 2])
    assert path.count("M") == 2
    assert path.count("L") == 1
    assert call("numbers", "m.sparkline([])") == ""
    assert "NaN" not in call("numbers", "m.sparkline([0, 0])")
