"""Recorded traces keep their arrivals, lengths and shared prefixes."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import traces
from benchmarks.traces import Cut, Recorded
from benchmarks.workload_file import WorkloadError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9805900,396,109
2023-11-16 18:16:46.6805900,30,10
"""
MOONCAKE = [
    {"timestamp": 1000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 1200, "output_length": 60, "hash_ids": [0, 1, 3]},
    {"timestamp": 4000, "input_length": 100, "output_length": 5, "hash_ids": [4]},
]


class Letters:
    """A letter a token: what is tested here is lengths and prefixes."""

    def encode(self, text: str) -> Sequence[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


@pytest.fixture
def mooncake(tmp_path: Path) -> list[Recorded]:
    path = tmp_path / "trace.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in MOONCAKE)
    return traces.read(path)


def test_azures_format(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    rows = traces.read(path)
    assert [row.at for row in rows] == pytest.approx([0, 4.3, 60])
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (30, 10)]


def test_mooncakes_format(mooncake: list[Recorded]) -> None:
    assert mooncake[1] == Recorded(0.0, 1200, 60, (0, 1, 3))
    assert mooncake[2].at == 3.0


def test_lengths_arrivals_and_shared_prefixes(mooncake: list[Recorded]) -> None:
    made = traces.workload("t", mooncake, Cut(), Letters(), seed=1)
    assert (made.kind, made.stream, made.name) == ("open", True, "t")
    for variant in made.variants:
        first, second, third = variant
        assert [len(prompt.ids) for prompt in variant] == [1100, 1200, 100]
        assert [prompt.max_tokens for prompt in variant] == [50, 60, 5]
        assert [prompt.arrival for prompt in variant] == [0.0, 0.0, 3.0]
        assert first.ids[:1024] == second.ids[:1024]
        assert first.ids[1024:] != second.ids[1024:1100]
        assert third.ids != first.ids[:100]
    assert made.variants[0][0].ids[:512] != made.variants[1][0].ids[:512]


def test_a_small_machine_takes_a_part_more_slowly_and_shorter(mooncake: list[Recorded]) -> None:
    cut = Cut(seconds=4, slowdown=10, shrink=0.1, longest=120)
    made = traces.workload("t", mooncake, cut, Letters(), seed=1)
    assert [(len(p.ids), p.max_tokens, p.arrival) for p in made.variants[0]] == [(110, 5, 0.0), (10, 1, 30.0)]
    late = traces.workload("t", mooncake, Cut(start=2, seconds=2), Letters(), seed=1)
    assert [prompt.arrival for prompt in late.variants[0]] == [1.0]


def test_nothing_in_the_cut_is_told(mooncake: list[Recorded]) -> None:
    with pytest.raises(WorkloadError, match="between 1000 and 1060 s"):
        traces.workload("t", mooncake, Cut(start=1000), Letters(), seed=1)


@pytest.mark.parametrize("text", ["", "hello\n", "[1]\n", '{"timestamp": 1}\n', "TIMESTAMP,ContextTokens\nx,1,2\n"])
def test_other_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=r"bad\.csv"):
        traces.read(path)


def test_a_gzip_that_is_none_and_a_file_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_text(AZURE)
    for name in ("x.csv.gz", "none.csv"):
        with pytest.raises(WorkloadError, match="can't be read"):
            traces.read(tmp_path / name)
