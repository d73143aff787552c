"""The workloads have the shapes that they claim, the same for the same seed, and other text in every variant."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks import codec, prose, workload_file
from benchmarks.workloads import SEED, STANDARD, VARIANTS, Tokens, Workload


class TrainedCodec:
    """A byte-level BPE as models have them, trained on a little prose."""

    def __init__(self) -> None:
        self._backend = Tokenizer(models.BPE())
        self._backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=800, show_progress=False)
        self._backend.train_from_iterator([prose.write(random.Random(1), 2000)], trainer)

    def encode(self, text: str) -> Sequence[int]:
        return list(self._backend.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(ids)))


@pytest.fixture(scope="module")
def trained() -> TrainedCodec:
    return TrainedCodec()


@pytest.fixture(scope="module")
def made(trained: TrainedCodec) -> dict[str, Workload]:
    return {name: make(trained, SEED) for name, make in STANDARD.items()}


def lengths(workload: Workload, variant: int = 0) -> list[int]:
    return [len(prompt.ids) for prompt in workload.variants[variant]]


def test_w1_is_many_at_once(made: dict[str, Workload]) -> None:
    w1 = made["w1"]
    assert (w1.kind, w1.concurrency, w1.stream, len(lengths(w1))) == ("closed", 16, False, 64)
    assert 16 <= min(lengths(w1)) < 20
    assert max(lengths(w1)) == 512
    assert 140 <= sum(lengths(w1)) / 64 <= 144
    assert lengths(w1) != sorted(lengths(w1))
    assert {prompt.max_tokens for prompt in w1.variants[0]} == {64}


def test_w2_is_one_alone(made: dict[str, Workload]) -> None:
    w2 = made["w2"]
    assert (w2.kind, w2.concurrency, w2.stream, lengths(w2)) == ("closed", 1, True, [128] * 4)
    assert {prompt.max_tokens for prompt in w2.variants[0]} == {128}


def test_w3_shares_400_tokens_in_a_variant_and_none_over_variants(made: dict[str, Workload]) -> None:
    w3 = made["w3"]
    assert (w3.kind, w3.concurrency, w3.stream, lengths(w3)) == ("closed", 8, True, [430] * 32)
    prefixes = [{prompt.ids[:400] for prompt in variant} for variant in w3.variants]
    assert all(len(prefix) == 1 for prefix in prefixes)
    assert len(set.union(*prefixes)) == VARIANTS
    assert len({prompt.ids[400:] for prompt in w3.variants[0]}) == 32


@pytest.mark.parametrize(("name", "rate"), [("w4", 2), ("w4half", 1)])
def test_w4_arrives_at_its_rate(made: dict[str, Workload], name: str, rate: int) -> None:
    w4 = made[name]
    arrivals = [prompt.arrival for prompt in w4.variants[0]]
    assert (w4.kind, w4.stream) == ("open", True)
    assert arrivals == sorted(arrivals)
    assert 0 < arrivals[0] < arrivals[-1] < 60
    assert abs(len(arrivals) - 60 * rate) < 3 * (60 * rate) ** 0.5
    assert all(50 <= length <= 150 for length in lengths(w4))
    assert all(24 <= prompt.max_tokens <= 72 for prompt in w4.variants[0])


def test_variants_differ_in_text_alone(made: dict[str, Workload]) -> None:
    for workload in made.values():
        shapes = [[(len(p.ids), p.max_tokens, p.arrival) for p in variant] for variant in workload.variants]
        assert len(shapes) == VARIANTS
        assert all(shape == shapes[0] for shape in shapes)
        texts = [prompt.text for variant in workload.variants for prompt in variant]
        assert len(set(texts)) == len(texts)
        assert not set(texts) & {prompt.text for prompt in workload.warmup}


def test_every_text_has_exactly_its_tokens(made: dict[str, Workload], trained: TrainedCodec) -> None:
    for workload in made.values():
        for prompt in workload.variants[0]:
            assert trained.encode(prompt.text) == list(prompt.ids)


def test_the_same_seed_makes_the_same_and_another_seed_another(
    made: dict[str, Workload], trained: TrainedCodec
) -> None:
    for name in ("w1", "w4half"):
        assert STANDARD[name](trained, SEED) == made[name]
        assert STANDARD[name](trained, SEED + 1).variants[0][0].text != made[name].variants[0][0].text


def test_pieces_never_overlap(trained: TrainedCodec) -> None:
    tokens = Tokens(trained, "seed")
    pieces = [trained.decode(tokens.take(60)) for _ in range(400)]
    assert len(set(pieces)) == 400


def test_a_workload_survives_its_file(made: dict[str, Workload], tmp_path: Path) -> None:
    for name, workload in made.items():
        workload_file.write(workload, tmp_path / f"{name}.json")
        assert workload_file.read(tmp_path / f"{name}.json") == workload


def test_a_recorded_file_without_what_has_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"kind": "closed", "extra": 1, "variants": [[{"text": "hi", "max_tokens": 3}]]}))
    workload = workload_file.read(path)
    assert (workload.name, workload.stream, workload.concurrency, workload.warmup) == ("mine", True, 1, ())
    assert workload.variants[0][0].ids == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        "{}",
        '{"kind": "embeddings", "variants": [[{"text": "a", "max_tokens": 0}]]}',
        '{"kind": "closed", "variants": []}',
        '{"kind": "closed", "variants": [[]]}',
        '{"kind": "closed", "variants": 5}',
        '{"kind": "closed", "variants": [["a"]]}',
        '{"kind": "closed", "variants": [[{"text": "a"}]]}',
        '{"kind": "closed", "concurrency": 0, "variants": [[{"text": "a", "max_tokens": 1}]]}',
    ],
)
def test_a_file_that_is_no_workload_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(workload_file.WorkloadError, match=r"bad\.json"):
        workload_file.read(path)
    with pytest.raises(workload_file.WorkloadError, match="can't be read"):
        workload_file.read(tmp_path / "none.json")


@pytest.mark.model
def test_the_real_tokenizer_counts_the_same() -> None:
    tokenizer = codec.load("HuggingFaceTB/SmolLM2-135M-Instruct")
    workload = STANDARD["w2"](tokenizer, SEED)
    assert all(list(tokenizer.encode(prompt.text)) == list(prompt.ids) for v in workload.variants for prompt in v)
    assert replace(workload, name="w2") == workload
