"""This process's part in a model that several compute: who it is among them, and the one sum that their parts need.

Each layer's heads and MLP columns are divided (`pagemill.tensor_parallel`); what a process computes of a layer is its share of a
sum, so two sums a layer make the stream the same in all of them. `weights` takes the parts, `workers` and `worker` are the
processes. https://arxiv.org/abs/1909.08053
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

TIMEOUT = 60.0  # seconds that one process waits in a sum for another: far more than they are ever apart


class Group:
    """The processes of one model, all on this machine. They meet in a file and talk on the loopback interface alone."""

    def __init__(self) -> None:
        self._gloo: Any = None  # a ProcessGroupGloo, which torch leaves untyped
        self._size = 0

    def meet(self, file: Path, rank: int, size: int) -> None:
        """Once all are there. Raises RuntimeError when one isn't within TIMEOUT."""
        # A group of our own, not torch's default one, which belongs to the program that we are part of.
        gloo: Any = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=TIMEOUT)
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        store = distributed.FileStore(str(file), size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=TIMEOUT))
        self._gloo, self._size = gloo(store, rank, size, options), size

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in the order of their ranks. Raises RuntimeError when one has gone or doesn't come.

        Not gloo's allreduce, which from three processes on adds an element in an order that follows from its place in x: a
        row's bits would depend on the rows beside it.
        """
        assert self._gloo is not None, "the processes have not met"
        parts = [torch.empty_like(x) for _ in range(self._size)]
        self._gloo.allgather([parts], [x]).wait()
        for part in parts[1:]:
            parts[0] += part
        return parts[0]


@dataclass(frozen=True, slots=True)
class Parallel:
    """One process's place; `ALONE` where there is only one."""

    rank: int = 0
    size: int = 1
    group: Group | None = None

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every process's x, the same bits in all of them and for each row in any batch; x itself for one alone."""
        return x if self.group is None else self.group.add_up(x)


ALONE = Parallel()
