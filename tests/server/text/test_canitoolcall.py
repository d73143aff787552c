"""canitoolcall's recorded and reported outputs through our parsers, whole and in any cuts, judged by its own checks.

https://pypi.org/project/canitoolcall: 121 fixtures of the three formats, from templates, engines' tests and bug reports.
"""

from __future__ import annotations

import pytest
from canitoolcall.adapters.base import ReplayInput
from canitoolcall.checks import case_status, run_checks
from canitoolcall.chunking import ChunkStrategy, split_text
from canitoolcall.fixtures import Fixture, load_families, load_fixtures
from canitoolcall.results import Observation, Status
from hypothesis import given, settings

from tests.server.canitoolcall_adapter import FAMILIES, PagemillAdapter, parser_for
from tests.server.text.parsed import cuts, parse, pieces

OURS = load_families()
ADAPTER = PagemillAdapter()
FIXTURES = [f for f in load_fixtures(families=FAMILIES) if ADAPTER.supports(f.family, f.reference_model)]
SEEDS = (0, 1, 2, 3)  # 0: character by character

# The output ends, or breaks, within a call's arguments. They are streamed as the model writes them, so that by then a client has
# the call and its arguments' beginning; the answer's finish_reason is `length`, as OpenAI's own is. canitoolcall would have no
# call at all, which only a parser can do that says nothing before a call is over: minutes of silence for a long one.
CUT_WITHIN_ARGUMENTS = {
    "llama/l3-truncated-inside-parameters",
    "mistral/v13think-truncated-in-arguments",
    "qwen3-hermes/bug-sglang-30480-truncated-mid-arguments",
    "qwen3-hermes/truncated-mid-arguments-no-thinking",
    "qwen3-hermes/truncated-mid-arguments-thinking",
    "qwen3-hermes/truncated-second-parallel-call",
    "qwen3-hermes/vllm-invalid-json-missing-brace",
}


def raw(fixture: Fixture) -> ReplayInput:
    return ReplayInput.from_fixture(fixture, OURS[fixture.family])


def observed(fixture: Fixture) -> Observation:
    strategies = [ChunkStrategy("char", seed=seed) for seed in SEEDS]
    streams = {s.id: ADAPTER.parse_stream_text(raw(fixture), split_text(fixture.raw_output, s), ()) for s in strategies}
    return Observation(ADAPTER.parse(raw(fixture), ()), streams)


def test_there_are_as_many_as_we_say() -> None:
    assert len(FIXTURES) == 121
    assert {fixture.id for fixture in FIXTURES} > CUT_WITHIN_ARGUMENTS


@pytest.mark.parametrize("fixture", [f for f in FIXTURES if f.id not in CUT_WITHIN_ARGUMENTS], ids=lambda f: f.id)
def test_passes_to_the_letter(fixture: Fixture) -> None:
    rows = run_checks(fixture, OURS[fixture.family], observed(fixture))
    assert rows
    assert [row for row in rows if row.status is not Status.PASS] == []


@pytest.mark.parametrize("fixture", [f for f in FIXTURES if f.id in CUT_WITHIN_ARGUMENTS], ids=lambda f: f.id)
def test_cut_within_arguments_is_a_call_as_far_as_it_came(fixture: Fixture) -> None:
    seen = observed(fixture)
    rows = run_checks(fixture, OURS[fixture.family], seen)
    assert case_status([row for row in rows if row.check in ("stream_equals_nonstream", "no_leakage")]) is Status.PASS
    *whole, cut = seen.nonstream.tool_calls
    assert len(whole) == (fixture.id == "qwen3-hermes/truncated-second-parallel-call")
    assert cut.name in [tool["function"]["name"] for tool in fixture.tools]
    assert cut.arguments_raw is not None
    assert cut.arguments_raw.startswith("{")
    assert cut.arguments_raw in fixture.raw_output


@settings(max_examples=40, deadline=None)
@given(cuts())
def test_any_cut_is_read_alike(sizes: list[int]) -> None:
    for fixture in FIXTURES:
        if len(fixture.raw_output) < 500:
            whole = parse(parser_for(raw(fixture)), [fixture.raw_output])
            assert parse(parser_for(raw(fixture)), pieces(fixture.raw_output, sizes)) == whole, fixture.id
