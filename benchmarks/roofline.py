"""What this machine could do at most: how fast it reads memory, how fast it multiplies, and the time that W1 takes at those rates.

    python -m benchmarks.roofline [MODEL]

    W1's seconds = prompt FLOP / GEMM rate + decode bytes / read rate
      prompt FLOP  = 2 x (weights of all layers x prompt tokens + weights of the head x requests)
      decode bytes = steps x 2 bytes x all weights a step reads + 2 bytes x keys and values that each generated token reads
      steps        = generated tokens / sequences at a time

Weights and cache count 2 bytes a number, whatever the server keeps: it is the machine's limit for 16 bits. Attention's own
multiplications, activations and the arithmetic of decoding are left out, so nobody reaches it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benchmarks import machine
from benchmarks.workloads import Prompt
from pagemill.model_config import ModelConfig

READ_BYTES = 512 * 1024**2
GEMM_SIZE = 2048
THREADS = 2
RUNS = 7
_BYTES = 2  # a number, of weights and of the cache


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured here, by `measure`."""

    read_bytes_s: float
    float32_flop_s: float
    bfloat16_flop_s: float
    threads: int

    @property
    def flop_s(self) -> float:
        """The better of the two."""
        return max(self.float32_flop_s, self.bfloat16_flop_s)

    def line(self) -> str:
        return (
            f"read {self.read_bytes_s / 1e9:.1f} GB/s ({READ_BYTES // 1024**2} MiB, {self.threads} threads), GEMM "
            f"float32 {self.float32_flop_s / 1e9:.0f}, bfloat16 {self.bfloat16_flop_s / 1e9:.0f} GFLOP/s"
        )

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Work:
    """What a workload must compute and read at least."""

    prompt_flop: float
    decode_bytes: float
    output_tokens: int

    def seconds(self, rates: Rates, flop_s: float | None = None) -> float:
        return self.prompt_flop / (flop_s or rates.flop_s) + self.decode_bytes / rates.read_bytes_s

    def output_tok_s(self, rates: Rates, flop_s: float | None = None) -> float:
        """At the limit."""
        return self.output_tokens / self.seconds(rates, flop_s)


def work(config: ModelConfig, prompts: Sequence[Prompt], at_a_time: int) -> Work:
    """Of a closed workload's prompts, so many sequences at a time."""
    head = config.vocab_size * config.hidden_size
    width = config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
    out = config.head_dim * config.num_attention_heads
    layer = config.hidden_size * (width + out + 3 * config.intermediate_size)
    layers = layer * config.num_hidden_layers
    prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
    generated = sum(prompt.max_tokens for prompt in prompts)
    kv_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    kv_read = sum(prompt.max_tokens * (len(prompt.ids) + prompt.max_tokens / 2) for prompt in prompts)
    return Work(
        prompt_flop=2.0 * (layers * prompt_tokens + head * len(prompts)),
        decode_bytes=_BYTES * ((layers + head) * generated / at_a_time + kv_token * kv_read),
        output_tokens=generated,
    )


def measure(threads: int = THREADS, runs: int = RUNS, read_bytes: int = READ_BYTES, size: int = GEMM_SIZE) -> Rates:
    """The best of several runs of each; takes some seconds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        read = read_bytes / _read_seconds(read_bytes, runs)
        float32, bfloat16 = (2.0 * size**3 / _gemm_seconds(dtype, size, runs) for dtype in ("float32", "bfloat16"))
    finally:
        torch.set_num_threads(before)
    return Rates(read, float32, bfloat16, threads)


def _read_seconds(read_bytes: int, runs: int) -> float:
    """Of float32 numbers, summed and multiplied with a vector: whichever the library does faster."""
    import torch

    words = torch.ones(read_bytes // 4)
    rows, vector = words.view(-1, 4096), torch.ones(4096)
    return min(_best(runs, words.sum), _best(runs, lambda: torch.mv(rows, vector)))


def _gemm_seconds(dtype: str, size: int, runs: int) -> float:
    import torch

    left, right = (torch.ones(size, size, dtype=getattr(torch, dtype)) for _ in range(2))
    return _best(runs, lambda: torch.mm(left, right))


def _best(runs: int, run: Callable[[], object]) -> float:
    """Seconds of the fastest, the first one not counted."""
    run()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def main(argv: list[str] | None = None) -> int:
    """Print the rates, and W1's limit for a model."""
    from benchmarks import codec, workloads
    from pagemill.model_files import inspect, resolve

    args = sys.argv[1:] if argv is None else argv
    model = args[0] if args else "HuggingFaceTB/SmolLM2-135M-Instruct"
    print(machine.describe().line())
    rates = measure()
    print(rates.line())
    config = inspect(resolve(model)).config
    assert isinstance(config, ModelConfig), f"{model} does not generate"
    workload = workloads.w1(codec.load(model), workloads.SEED)
    limit = work(config, workload.variants[0], workload.concurrency)
    print(f"W1: {limit.prompt_flop / 1e12:.2f} TFLOP of prompts, {limit.decode_bytes / 1e9:.0f} GB of decoding")
    for name, flop_s in (("float32", rates.float32_flop_s), ("bfloat16", rates.bfloat16_flop_s)):
        print(f"W1's limit, {name}: {limit.output_tok_s(rates, flop_s):.0f} output tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
