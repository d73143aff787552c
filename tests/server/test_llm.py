"""The engine from Python gives what the server gives."""

from __future__ import annotations

import pytest

from pagemill_server import LLM, SamplingParams
from pagemill_server.config import CacheConfig
from pagemill_server.engine.errors import RequestRefused
from pagemill_server.engine.request import FinishReason
from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_tiny_llama(tmp_path_factory.mktemp("tiny"))), cache=CacheConfig(memory_bytes=1 << 20))


GREEDY = SamplingParams(temperature=0, max_tokens=12)


def test_many_prompts_in_their_order(llm: LLM) -> None:
    prompts = ["one", list(b"two"), "three"]
    together = llm.generate(prompts, GREEDY, ignore_eos=True)
    assert [answer.text for answer in together] == [
        llm.generate(prompt, GREEDY, ignore_eos=True)[0].text for prompt in prompts
    ]
    assert all(len(answer.token_ids) == 12 for answer in together)
    assert all(answer.finish_reason is FinishReason.LENGTH for answer in together)


def test_stop_strings(llm: LLM) -> None:
    whole = llm.generate("stop", GREEDY, ignore_eos=True)[0].text
    cut = llm.generate(["stop", "other"], GREEDY, stop=[whole[4]], ignore_eos=True)
    assert (cut[0].text, cut[0].finish_reason) == (whole[: whole.index(whole[4])], FinishReason.STOP)
    assert llm.generate("stop", GREEDY, ignore_eos=True)[0].text == whole  # nothing is left of the one that was cut


def test_what_cannot_be_served(llm: LLM) -> None:
    with pytest.raises(RequestRefused, match="vocabulary"):
        llm.generate([[1, 9999]], GREEDY)
    with pytest.raises(RequestRefused, match="256 tokens"):
        llm.generate("x" * 300, GREEDY)
    with pytest.raises(ValueError, match="at least one token"):
        llm.generate([""], GREEDY)
    assert llm.generate([], GREEDY) == []
    assert len(llm.generate("fine", GREEDY)) == 1


def test_the_eos_ends_it(llm: LLM) -> None:
    answers = llm.generate(["x"] * 20, SamplingParams(temperature=2, max_tokens=200))
    ended = [answer for answer in answers if answer.finish_reason is FinishReason.STOP]
    assert ended
    assert all(answer.token_ids[-1] == 258 for answer in ended)
