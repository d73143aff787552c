"""The engine from Python gives what the server gives, in vLLM's shapes; what can't be is one clear error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagemill.failures import PagemillError
from pagemill_server import LLM, SamplingParams
from pagemill_server.engine.errors import RequestRefused
from pagemill_server.llm import GenerationFailed
from tests.server.tiny import IM_END, write_tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", block_size=8) as llm:
        yield llm


def text(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    (result,) = llm.generate(prompt, params)
    return result.outputs[0].text


# generate


def test_many_prompts_in_their_order(llm: LLM) -> None:
    together = llm.generate(["one", list(b"two"), "three"], GREEDY)
    assert [result.outputs[0].text for result in together] == [text(llm, name) for name in ("one", "two", "three")]
    assert [result.prompt for result in together] == ["one", None, "three"]
    assert [result.prompt_token_ids for result in together] == [tuple(b"one"), tuple(b"two"), tuple(b"three")]
    assert all(result.outputs[0].finish_reason == "length" for result in together)
    assert all(len(result.outputs[0].token_ids) == 12 for result in together)


def test_one_prompt_of_token_ids(llm: LLM) -> None:
    (result,) = llm.generate(list(b"two"), GREEDY)
    assert result.outputs[0].text == text(llm, "two")


def test_settings_one_a_prompt(llm: LLM) -> None:
    short, long = llm.generate(["one", "one"], [replace(GREEDY, max_tokens=3), GREEDY])
    assert len(short.outputs[0].token_ids) == 3
    assert long.outputs[0].token_ids[:3] == short.outputs[0].token_ids
    with pytest.raises(ValueError, match="sampling_params has 1 entries for 2 prompts"):
        llm.generate(["one", "two"], [GREEDY])


@pytest.mark.parametrize("settings", ["greedy", {"n": 2}, [{"n": 2}, {"n": 2}], 7])
def test_what_are_no_settings(llm: LLM, settings: Any) -> None:
    with pytest.raises(ValueError, match="sampling_params must be a list of SamplingParams, one a prompt"):
        llm.generate(["one", "two"], settings)


def test_without_settings_openais_defaults(llm: LLM) -> None:
    (result,) = llm.generate("one")
    assert 1 <= len(result.outputs[0].token_ids) <= 16


def test_n_answers_share_the_prompt_and_differ(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=8, ignore_eos=True)
    first, second = llm.generate(["one", "two"], params)
    assert [answer.index for answer in first.outputs] == [0, 1, 2]
    assert len({answer.token_ids for answer in first.outputs}) == 3
    assert llm.generate("two", params)[0].outputs == second.outputs  # whatever ran beside it


def test_stop_strings_cut_the_text_and_leave_the_others_alone(llm: LLM) -> None:
    whole = text(llm, "stop")
    assert "\n" not in whole[:5]
    cut, other = llm.generate(["stop", "other"], [replace(GREEDY, stop=(whole[4],)), GREEDY])
    assert (cut.outputs[0].text, cut.outputs[0].finish_reason) == (whole[: whole.index(whole[4])], "stop")
    assert other.outputs[0].text == text(llm, "other")
    assert text(llm, "stop") == whole  # nothing is left of the one that was cut


def test_a_list_and_a_single_string_are_stops_too(llm: LLM) -> None:
    whole = text(llm, "stop")
    for stop in (whole[4], [whole[4]]):
        params: Any = replace(GREEDY, stop=stop)  # type: ignore[arg-type]
        assert text(llm, "stop", params) == whole[: whole.index(whole[4])]


def test_min_tokens_holds_the_eos_and_the_stop_strings_back(llm: LLM) -> None:
    whole = text(llm, "stop")
    params = replace(GREEDY, stop=(whole[0],), min_tokens=6)
    (result,) = llm.generate("stop", params)
    assert len(result.outputs[0].token_ids) >= 6
    assert result.outputs[0].text.startswith(whole[0])


def test_the_eos_ends_it(llm: LLM) -> None:
    answers = [result.outputs[0] for result in llm.generate(["x"] * 20, SamplingParams(temperature=2, max_tokens=200))]
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    assert ended
    assert all(answer.token_ids[-1] == IM_END for answer in ended)


def test_logprobs_of_the_answer(llm: LLM) -> None:
    (result,) = llm.generate("one", replace(GREEDY, logprobs=2))
    answer = result.outputs[0]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, listed in zip(answer.token_ids, answer.logprobs, strict=True):
        assert len(listed) == 2
        assert listed[token].rank == 1  # greedy
        assert listed[token].logprob == max(one.logprob for one in listed.values())
    total = sum(listed[token].logprob for token, listed in zip(answer.token_ids, answer.logprobs, strict=True))
    assert answer.cumulative_logprob == pytest.approx(total)
    assert llm.generate("one", GREEDY)[0].outputs[0].logprobs is None


def test_logprobs_of_the_prompt(llm: LLM) -> None:
    (asked,) = llm.generate("one two", replace(GREEDY, prompt_logprobs=1))
    assert asked.prompt_logprobs is not None
    assert [listed is None for listed in asked.prompt_logprobs] == [True] + [False] * 6
    for token, listed in zip(asked.prompt_token_ids[1:], asked.prompt_logprobs[1:], strict=True):
        assert listed is not None
        assert listed[token].rank is not None
    # What the model says of a prompt's continuation is what it says of it as a prompt.
    (answered,) = llm.generate("one", replace(GREEDY, max_tokens=4, logprobs=0))
    ids = answered.prompt_token_ids + answered.outputs[0].token_ids
    (again,) = llm.generate([ids], replace(GREEDY, prompt_logprobs=0))
    assert again.prompt_logprobs is not None
    assert answered.outputs[0].logprobs is not None
    for token, place, listed in zip(
        answered.outputs[0].token_ids, (3, 4, 5, 6), answered.outputs[0].logprobs, strict=True
    ):
        of_prompt = again.prompt_logprobs[place]
        assert of_prompt is not None
        assert of_prompt[token].logprob == pytest.approx(listed[token].logprob, abs=1e-5)


def test_a_prompt_can_be_scored_without_an_answer(llm: LLM) -> None:
    (result,) = llm.generate("one", SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert (result.outputs[0].token_ids, result.outputs[0].finish_reason) == ((), "length")
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == 3


def test_a_prefix_that_was_computed_before_is_counted(folder: Path) -> None:
    prompt = "a prompt that is longer than one block"
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", block_size=8) as llm:
        first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
        assert first.outputs == second.outputs
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", block_size=8, enable_prefix_caching=False) as llm:
        assert [llm.generate(prompt, GREEDY)[0].num_cached_tokens for _ in range(2)] == [0, 0]


def test_priorities_need_one_a_prompt(folder: Path) -> None:
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", scheduling_policy="priority", max_num_seqs=1) as llm:
        both = llm.generate(["one", "two"], GREEDY, priority=[1, 0])
        assert [result.prompt for result in both] == ["one", "two"]
        with pytest.raises(ValueError, match="priority has 1 entries for 2 prompts"):
            llm.generate(["one", "two"], GREEDY, priority=[1])
        for priority in (3, ["high", "low"], [0.5, 1.5]):
            with pytest.raises(ValueError, match="priority must be a list of int, one a prompt"):
                llm.generate(["one", "two"], GREEDY, priority=priority)  # type: ignore[arg-type]


def test_nothing_to_do(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    assert llm.chat([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("", "prompt 0 has no tokens"),
        (["fine", ""], "prompt 1 has no tokens"),
        ([[]], "prompt 0 has no tokens"),
        ([["a"]], r"prompt 0 must be text or token ids, not \"\['a'\]\""),
        ([1.5], "prompt 0 must be text or token ids"),
        ([[True]], "prompt 0 must be text or token ids"),
        (7, "prompts must be text, token ids, or a list of these"),
        ("\ud800", "prompt 0 is not valid Unicode"),
    ],
)
def test_what_is_no_prompt(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, GREEDY)


def test_what_cannot_be_served(llm: LLM) -> None:
    with pytest.raises(RequestRefused, match="vocabulary"):
        llm.generate(["fine", [1, 9999]], GREEDY)
    with pytest.raises(RequestRefused, match=r"300 tokens.* 256"):
        llm.generate("x" * 300, GREEDY)
    with pytest.raises(ValueError, match="temperature"):
        llm.generate("x", SamplingParams(temperature=-1))
    with pytest.raises(ValueError, match="logit_bias"):
        llm.generate("x", SamplingParams(logit_bias=((9999, 1.0),)))
    assert len(llm.generate("fine", GREEDY)) == 1


def test_an_engine_that_fails_says_so_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(str(folder), kv_cache_memory_bytes="1MiB") as llm:
        engine = llm._opened().engine
        run = engine._runner.run  # type: ignore[attr-defined]
        monkeypatch.setattr(engine._runner, "run", lambda output: 1 / 0)  # type: ignore[attr-defined]
        with pytest.raises(GenerationFailed, match="failed"):
            llm.generate(["one", "two"], GREEDY)
        monkeypatch.setattr(engine._runner, "run", run)  # type: ignore[attr-defined]
        assert not engine.has_work
        assert len(llm.generate("one", GREEDY)) == 1


def test_an_interrupt_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, engine = text(llm, "one"), llm._opened().engine

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one"] * 5, GREEDY)
    monkeypatch.undo()
    assert not engine.has_work
    assert text(llm, "one") == expected


# chat


def test_chat_goes_through_the_models_template(llm: LLM) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (result,) = llm.chat(conversation, GREEDY)
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert result.prompt == prompt
    assert result.outputs[0].text == text(llm, prompt)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    both = llm.chat([conversation, parts], GREEDY)
    assert both[0].outputs == result.outputs
    assert both[1].prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([[{"role": "user", "content": "x"}], [{"role": "wizard", "content": "x"}]], r"conversation 1: .*role"),
        ([{"content": "x"}], r"conversation 0: .*role"),
        ([[7]], "conversation 0"),
        ([[]], "conversation 0"),
        ([["Hi"]], 'conversation 0: a message must be a dict of "role" and "content", not \'Hi\''),
        ("Hi", "messages must be a conversation"),
        (7, "messages must be a conversation"),
    ],
)
def test_what_is_no_conversation(llm: LLM, messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.chat(messages, GREEDY)


# The start and the end.


def test_an_unknown_argument_is_named(folder: Path) -> None:
    with pytest.raises(TypeError, match="trust_remote_code"):
        LLM(str(folder), trust_remote_code=True)  # type: ignore[call-arg]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PagemillError, match="does not exist"):
        LLM(str(tmp_path / "nowhere"))


def test_one_seed_answers_alike(folder: Path) -> None:
    def wander(seed: int) -> str:
        with LLM(str(folder), kv_cache_memory_bytes="1MiB", seed=seed) as llm:
            return text(llm, "one", SamplingParams(temperature=2, max_tokens=20, ignore_eos=True))

    assert wander(1) == wander(1) != wander(2)


def test_calls_from_several_threads_wait_for_each_other(folder: Path) -> None:
    prompts = [f"thread {number}" for number in range(6)]
    with LLM(str(folder), kv_cache_memory_bytes="1MiB") as llm, ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: text(llm, prompt, GREEDY), prompts))
        assert answers == [text(llm, prompt, GREEDY) for prompt in prompts]


def test_closed_it_answers_no_more_and_leaves_no_thread(folder: Path) -> None:
    before = set(threading.enumerate())
    with LLM(str(folder), kv_cache_memory_bytes="1MiB", kv_offloading_size=0.001) as llm:
        llm.generate("one", GREEDY)
    llm.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("one", GREEDY)
