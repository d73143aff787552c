"""Ask one chat question and print the answer as it streams: what any OpenAI client does, with the base URL changed.

python examples/chat.py http://127.0.0.1:8000/v1 "What is the capital of France?"
"""

import sys
import time

from openai import OpenAI


def main(base_url: str, question: str) -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    started = time.monotonic()
    first = 0.0
    tokens = 0
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=96,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.monotonic()
                print(choice.delta.content, end="", flush=True)
    ended = time.monotonic()
    rate = (tokens - 1) / (ended - first) if tokens > 1 else 0.0
    print(f"\n\n{model}: {tokens} tokens, first after {first - started:.2f} s, then {rate:.1f} tokens per second")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
