"""The progress bar: seen on a terminal, silent anywhere else."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count

from pagemill_server.offline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticks(step: float) -> Iterator[float]:
    return (step * place for place in count())


def test_on_a_terminal_it_is_drawn_over_itself_and_ends_its_line() -> None:
    terminal, clock = Terminal(), ticks(0.5)
    with Progress("Generating", 4, True, terminal, lambda: next(clock)) as progress:
        for _ in range(4):
            progress.advance(1, 10)
    drawn = terminal.getvalue().split("\r")[1:]
    assert [line.split("| ")[1].split(",")[0] for line in drawn] == ["1/4", "2/4", "3/4", "4/4", "4/4"]
    assert "| 2/4, 10.0 tokens/s" in drawn[1]  # 20 tokens in 2 seconds: every look at the clock takes half of one
    assert drawn[-1].count("█") == 30
    assert drawn[-1].endswith("\n")
    assert terminal.getvalue().count("\n") == 1


def test_it_is_drawn_a_few_times_a_second_only() -> None:
    terminal, clock = Terminal(), ticks(0.01)
    with Progress("Generating", 100, True, terminal, lambda: next(clock)) as progress:
        for _ in range(100):
            progress.advance(1, 1)
    assert terminal.getvalue().count("\r") < 25
    assert "100/100" in terminal.getvalue().splitlines()[-1]


def test_where_nobody_looks_nothing_is_written() -> None:
    for shown, total, stream in ((True, 4, io.StringIO()), (False, 4, Terminal()), (True, 0, Terminal())):
        with Progress("Generating", total, shown, stream) as progress:
            progress.advance(1, 10)
        assert stream.getvalue() == ""


def test_an_interrupt_leaves_the_cursor_on_a_line_of_its_own() -> None:
    terminal = Terminal()
    try:
        with Progress("Generating", 4, True, terminal) as progress:
            progress.advance(1, 10)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert terminal.getvalue().endswith("\n")
