"""Masks: each sequence follows its own grammar, whatever happens to it and to its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagemill_server.engine.request import SamplingParams
from pagemill_server.engine.schedule import ScheduledSequence
from pagemill_server.model import grammar_masks
from pagemill_server.model.grammar_masks import BROKEN, NO_MASKS, GrammarMasks, Masks
from pagemill_server.text.grammar import choice, compile, json_object, regex
from tests.server.model.stepping import step_of
from tests.server.text.grammar.constraining import ENDS, VOCAB, compiler

WORDS = compile(choice(["ab", "ac", "d"]))


@pytest.fixture
def masks() -> GrammarMasks:
    return GrammarMasks(compiler(), VOCAB)


def sequence(seq_id: int, output: str = "", grammar: str = WORDS, **params: Any) -> ScheduledSequence:
    ids = tuple(output.encode())
    sampling = SamplingParams(grammar=grammar, **params)
    return ScheduledSequence(seq_id, (0,), 0, (0,), sampling, 0, len(ids), output_tokens=ids if grammar else None)


def of(masks: GrammarMasks, *sequences: ScheduledSequence) -> Masks:
    return masks.of(step_of(sequences))


def allowed(masks: Masks, seq_id: int) -> str | list[int]:
    """Letters as text, ends as ids."""
    forbidden = masks.forbidden[seq_id]
    assert (forbidden.dtype, forbidden.shape) == (torch.bool, (VOCAB,))
    ids = (~forbidden).nonzero().squeeze(1).tolist()
    return ids if set(ids) & set(ENDS) else bytes(ids).decode()


def test_each_sequence_is_at_its_own_place(masks: GrammarMasks) -> None:
    found = of(masks, sequence(1), sequence(2, "a"), sequence(3, "d"), sequence(4, "", compile(regex("[xy]"))))
    assert [allowed(found, seq_id) for seq_id in (1, 2, 3, 4)] == ["ad", "bc", sorted(ENDS), "xy"]
    assert found.errors == {}


def test_step_by_step_is_as_from_the_start(masks: GrammarMasks) -> None:
    for output, expected in (("", "ad"), ("a", "bc"), ("ac", sorted(ENDS))):
        assert allowed(of(masks, sequence(1, output)), 1) == expected
        assert allowed(of(masks, sequence(9, output)), 9) == expected


def test_what_was_preempted_goes_on_where_it_was(masks: GrammarMasks) -> None:
    """It is in no step meanwhile, and may have been given tokens that this matcher never saw."""
    of(masks, sequence(1))
    of(masks, sequence(2))
    assert list(masks._followed) == [2]
    assert allowed(of(masks, sequence(1, "a"), sequence(2, "a")), 1) == "bc"


def test_a_step_that_does_not_sample_keeps_the_place(masks: GrammarMasks) -> None:
    of(masks, sequence(1, "a"))
    made = masks._followed[1].matcher
    assert of(masks, sequence(1, "a")._replace(sampling=None)) == Masks()
    assert masks._followed[1].matcher is made


def test_a_sequence_that_is_gone_leaves_nothing_behind(masks: GrammarMasks) -> None:
    of(masks, sequence(1), sequence(2))
    of(masks, sequence(3, grammar=""))
    assert masks._followed == {}


def test_steps_without_grammars_cost_nothing(masks: GrammarMasks) -> None:
    assert masks.of(step_of([sequence(1, grammar="")])) is NO_MASKS


def test_another_engines_sequence_of_that_id_is_another_sequence(masks: GrammarMasks) -> None:
    of(masks, sequence(1, "a"))
    assert allowed(of(masks, sequence(1, "a", compile(regex("a[xy]")))), 1) == "xy"
    assert allowed(of(masks, sequence(1)), 1) == "ad"
    assert allowed(of(masks, sequence(1, "d")), 1) == sorted(ENDS)


def test_one_that_breaks_breaks_alone(masks: GrammarMasks) -> None:
    found = of(masks, sequence(1, "zz"), sequence(2, "a"))
    assert list(found.errors) == [1]
    assert found.errors[1].startswith(BROKEN)
    assert allowed(found, 2) == "bc"
    assert allowed(of(masks, sequence(1, "a")), 1) == "bc", "the next of that grammar is not hurt by it"


def test_a_grammar_that_cannot_be_compiled_is_an_error_too(masks: GrammarMasks) -> None:
    assert list(of(masks, sequence(1, grammar='{"grammars": [{"name": "p", "lark_grammar": "no"}]}')).errors) == [1]


def test_a_limit_of_the_parser_is_an_error_and_the_grammar_is_compiled_anew(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(compiler(), "forget", forgotten.append)
    of(masks, sequence(1, "zz"))
    assert forgotten == [WORDS]


def test_ids_beyond_the_models_are_forbidden_whatever_the_grammar(masks: GrammarMasks) -> None:
    forbidden = of(masks, sequence(1, "", compile(json_object()))).forbidden[1]
    assert bool(forbidden[260:].all())


def test_a_sequence_whose_masks_take_too_long_ends_and_its_neighbours_go_on(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has used up its own allowance: nothing is allowed for a first token here, and much for each that follows."""
    monkeypatch.setattr(grammar_masks, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(grammar_masks, "TOKEN_SECONDS", 60.0)
    found = of(masks, sequence(1), sequence(2, "a"))
    assert found.errors == {1: BROKEN + "it takes too long to say what may come next."}
    assert allowed(found, 2) == "bc"
