"""Runs in OpenVINO's Python, which has nothing of ours: generates as `lines` asks it to. Called with the path of a GGUF.

A client's clock and the pipeline's steps are one loop: requests are added when their time or their turn comes, then a step runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found]
import openvino_genai as genai  # type: ignore[import-not-found]

CACHE_GB = 1  # of keys and values


def main() -> None:
    config = genai.SchedulerConfig()
    config.cache_size = CACHE_GB
    config.max_num_seqs = 64
    config.max_num_batched_tokens = 512
    config.dynamic_split_fuse = True
    config.enable_prefix_caching = True
    player = Player(genai.ContinuousBatchingPipeline(sys.argv[1], config, "CPU"))
    say({"event": "ready"})
    player.replay([{"ids": [9690, 198], "max_tokens": 1, "arrival": 0.0}], False, 1)
    say({"event": "first"})
    for line in sys.stdin:
        asked = json.loads(line)
        say({"samples": player.replay(asked["prompts"], asked["kind"] == "open", asked["concurrency"])})


class Player:
    """Asks the pipeline and takes the times that a client would."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._number = 0

    def replay(self, prompts: list[dict[str, Any]], by_time: bool, at_a_time: int) -> list[dict[str, Any]]:
        began = time.perf_counter()
        due = Due(prompts, by_time, at_a_time)
        running: list[tuple[dict[str, Any], Any]] = []
        done: list[dict[str, Any]] = []
        while due.left or running:
            now = time.perf_counter() - began
            for prompt in due.now(now, len(running)):
                sample = {"start": prompt["arrival"] if by_time else now, "wanted_tokens": prompt["max_tokens"]}
                sample |= {"end": 0.0, "chunks": [], "prompt_tokens": len(prompt["ids"]), "output_tokens": 0}
                running.append((sample, self._add(prompt)))
            if not running:
                time.sleep(0.001)
                continue
            self._pipeline.step()
            now = time.perf_counter() - began
            still = []
            for sample, handle in running:
                if self._take(sample, handle, now):
                    done.append(sample)
                else:
                    still.append((sample, handle))
            running = still
        return done

    def _add(self, prompt: dict[str, Any]) -> Any:
        how = genai.GenerationConfig()
        how.max_new_tokens = prompt["max_tokens"]
        how.ignore_eos = True
        how.do_sample = False
        self._number += 1
        ids = ov.Tensor(np.array([prompt["ids"]], dtype=np.int64))
        return self._pipeline.add_request(self._number, ids, how)

    def _take(self, sample: dict[str, Any], handle: Any, now: float) -> bool:
        """What came in the last step; True once the request has ended."""
        came = 0
        while handle.can_read():
            came += sum(len(output.generated_ids) for output in handle.read().values())
        if came:
            sample["output_tokens"] += came
            sample["chunks"].append(now)
        if handle.get_status() == genai.GenerationStatus.RUNNING:
            return False
        sample["end"] = now
        return True


class Due:
    """Prompts in order: each at its own time, or whenever fewer than so many run."""

    def __init__(self, prompts: list[dict[str, Any]], by_time: bool, at_a_time: int) -> None:
        self.left = list(reversed(prompts))
        self._by_time, self._at_a_time = by_time, at_a_time

    def now(self, seconds: float, running: int) -> Iterator[dict[str, Any]]:
        while self.left and (self.left[-1]["arrival"] <= seconds if self._by_time else running < self._at_a_time):
            running += 1
            yield self.left.pop()


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
