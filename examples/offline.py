"""The engine from Python, without a server: `generate` over a list, `chat`, and `embed`.

`make models` brings both models; any model that `pagemill serve` takes can be named instead, by org/name or by a path.
"""

import sys

from pagemill_server import LLM, SamplingParams

GENERATOR = "HuggingFaceTB/SmolLM2-135M-Instruct"
EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"


def generate(model: str) -> None:
    with LLM(model, max_num_seqs=16) as llm:
        settings = SamplingParams(temperature=0, max_tokens=16, stop=("\n",))
        for result in llm.generate(["The capital of France is", "Two plus two is"], settings):
            print(f"{result.prompt}{result.outputs[0].text}")

        (result,) = llm.chat(
            [{"role": "user", "content": "Name a colour."}],
            SamplingParams(n=2, temperature=0.8, seed=1, max_tokens=16),
        )
        for answer in result.outputs:
            print(f"colour {answer.index}: {answer.text!r} ({answer.finish_reason})")


def embed(model: str) -> None:
    texts = ["A cat sits on the mat.", "There is a kitten on the rug.", "Stocks fell on Monday."]
    with LLM(model) as llm:
        first, *others = (result.outputs.embedding for result in llm.embed(texts))
    for text, other in zip(texts[1:], others, strict=True):
        print(f"{sum(a * b for a, b in zip(first, other, strict=True)):.2f} {text}")


if __name__ == "__main__":
    generator, embedder = sys.argv[1:] or (GENERATOR, EMBEDDER)
    generate(generator)
    embed(embedder)
