"""The engine's own time a step: sequences that decode on a runner that computes nothing.

    python -m benchmarks.engine_overhead [--sequences 64] [--context 500] [--waiting 1000 --policy fair --clients 1000]
    python -m benchmarks.engine_overhead --profile      which functions it is, by their own time

Prints the machine line and percentiles of a step's CPU time, which a busy machine blurs less than the clock on the wall.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Sequence

from benchmarks import machine
from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.request import AddRequest, SampledToken, SamplingParams
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput

TOKEN = SampledToken(7)


class NoModel:
    """Samples the same token for everybody."""

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        return RunnerOutput({entry.seq_id: TOKEN for entry in output.sequences if entry.sampling is not None})


def measure(
    sequences: int,
    context: int,
    steps: int,
    waiting: int = 0,
    policy: str = "fcfs",
    names: Sequence[str] = ("",),
    choices: int = 1,
) -> list[float]:
    """Microseconds of CPU of each decode step, ascending. Requests come from the clients of those names in turn; those that wait
    ask for so many choices each."""
    limits = EngineLimits(
        max_model_len=10**6, vocab_size=1000, num_blocks=sequences * ((context + steps) // 16 + 2), block_size=16
    )
    config = SchedulerConfig(max_num_seqs=sequences, max_num_batched_tokens=sequences * context, policy=policy)
    engine = Engine(NoModel(), limits, config)
    for number in range(sequences + waiting):
        prompt = tuple((number * 31 + i) % 1000 for i in range(context))
        params = SamplingParams(max_tokens=10**6, n=choices if number >= sequences else 1)
        engine.add(AddRequest(f"r{number}", prompt, params, arrival=0.0, client=names[number % len(names)]))
    engine.step()
    assert engine.stats().num_running == sequences
    times = []
    for _ in range(steps):
        start = time.thread_time()
        engine.step()
        engine.stats()
        times.append(1e6 * (time.thread_time() - start))
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--context", type=int, default=500, help="prompt tokens of each")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=0, help="requests that wait beside them")
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--clients", type=int, default=1, help="that the requests come from")
    parser.add_argument("--users", action="store_true", help="they are users of one client")
    parser.add_argument("--choices", type=int, default=1, help="of each request that waits")
    parser.add_argument("--profile", action="store_true", help="print where the time goes; slower, so no figures")
    arguments = parser.parse_args()
    names = [("key1/" if arguments.users else "") + f"client{number}" for number in range(arguments.clients)]
    profile = cProfile.Profile()
    if arguments.profile:
        profile.enable()
    times = measure(
        arguments.sequences,
        arguments.context,
        arguments.steps,
        arguments.waiting,
        arguments.policy,
        names,
        arguments.choices,
    )
    print(machine.describe().line())
    if arguments.profile:
        profile.disable()
        pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(20)
        return
    for share in (0.1, 0.5, 0.9):
        print(f"p{100 * share:.0f} {times[int(share * len(times))]:.0f} us")


if __name__ == "__main__":
    main()
