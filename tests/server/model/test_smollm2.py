"""The real model, SmolLM2-135M-Instruct in Q4_1: its logits are transformers' own on the same dequantised weights.

transformers reads the GGUF by its own conversion. Needs the model in the models folder (`make model`).
"""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from pagemill.model_files import ModelFiles
from pagemill_server.text.template import ChatTemplate
from pagemill_server.text.tokenizer import load_tokenizer
from tests.server.model.stepping import Stepper, load
from tests.server.real_model import judge as real_model_in_transformers
from tests.server.real_model import real_model

pytestmark = pytest.mark.model

# Measured: at most 1.6e-4 (AVX2; 1.2e-4 on AVX-512) over the prompts below, whose logits reach 35. What remains is float32's: see
# the comparison with float64.
BOUND = 5e-4
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Count from 1 to 20.",
    "What is 1234 + 5678?",
    "Explain gravity to a child.",
    "Translate 'good morning' to Spanish.",
    "List three fruits.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes with 250 g of flour.",
    "What does HTTP stand for?",
    "Name the planets of the solar system.",
    "How many legs does a spider have?",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "What happened in 1969?",
    "Is 17 a prime number?",
    "Summarise the story of Cinderella in two sentences.",
    "What is the boiling point of water at 1013 hPa?",
    "Say something nice.",
    "Complete the sentence: once upon a time",
    "Where do penguins live? Answer in one word.",
    "Convert 3.5 km to miles.",
)
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return real_model()


@pytest.fixture(scope="module")
def stepper(files: ModelFiles) -> Stepper:
    _, stepper = load(files.path, block_size=32, max_model_len=2048)
    return stepper


@pytest.fixture(scope="module")
def judge() -> LlamaForCausalLM:
    return real_model_in_transformers()


@pytest.fixture(scope="module")
def prompts(files: ModelFiles) -> list[list[int]]:
    tokenizer = load_tokenizer(files)
    assert tokenizer.chat_template is not None
    template = ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
    return [tokenizer.encode(template.render([{"role": "user", "content": text}]), False) for text in QUESTIONS]


@torch.no_grad()
def logits_of(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def test_logits_are_transformers(stepper: Stepper, judge: LlamaForCausalLM, prompts: list[list[int]]) -> None:
    for index, tokens in enumerate(prompts):
        (ours,) = stepper.logits([(index, tokens)])
        theirs = logits_of(judge, tokens)
        assert (ours - theirs).abs().max() < BOUND
        assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
        stepper.release(index)


def test_logits_through_the_cache_in_chunks_and_batches_are_transformers(
    stepper: Stepper, judge: LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    """A text of 600 tokens, more than two tiles, cut into steps that it shares with other sequences."""
    tokens = [token for prompt in prompts for token in prompt][:600]
    theirs = logits_of(judge, tokens)
    for index, first in enumerate(range(0, 600, 150)):
        ours, _ = stepper.logits([(0, tokens[first : first + 150]), (1 + index, prompts[index])])
        assert (ours - theirs[first : first + 150]).abs().max() < BOUND
    for index in range(5):
        stepper.release(index)


def test_logits_are_about_as_near_to_float64_as_transformers_are(
    stepper: Stepper, judge: LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    tokens = prompts[8]
    theirs = logits_of(judge, tokens)
    exact = logits_of(judge.double(), tokens)
    judge.float()
    (ours,) = stepper.logits([(0, tokens)])
    stepper.release(0)
    # Measured 1.7: oneDNN adds a row's products one after another, MKL (transformers) in blocks; with MKL ours is 1.0.
    assert (ours - exact).abs().mean() < 3 * (theirs - exact).abs().mean()


@torch.no_grad()
def test_greedy_answers_are_transformers_alone_and_in_a_batch_of_16(
    stepper: Stepper, judge: LlamaForCausalLM, prompts: list[list[int]]
) -> None:
    expected = {}
    for index, tokens in enumerate(prompts):
        made = judge.generate(
            torch.tensor([tokens]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        expected[index] = made[0, len(tokens) :].tolist()
    for group in ([index] for index in range(len(prompts))):
        assert stepper.greedy({index: prompts[index] for index in group}, NEW_TOKENS) == {
            index: expected[index] for index in group
        }
        for index in group:
            stepper.release(index)
    for group in (range(16), range(16, len(prompts))):
        assert stepper.greedy({index: prompts[index] for index in group}, NEW_TOKENS) == {
            index: expected[index] for index in group
        }
        for index in group:
            stepper.release(index)
