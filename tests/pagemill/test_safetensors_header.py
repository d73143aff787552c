"""Safetensors tables: what the reference library writes is read as it reads it, and damage ends in one typed error."""

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pagemill.failures import FailureReason, PagemillError
from pagemill.safetensors_header import read_table
from pagemill.tensor_info import TensorInfo


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safetensors") / "sample.safetensors"
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "a.weight": random.standard_normal((3, 5)).astype(np.float32),
        "b.weight": random.standard_normal((4,)).astype(np.float16),
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "flags": np.array([True, False]),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_the_table_is_what_the_library_reads(sample: Path) -> None:
    table, raw = read_table(sample), sample.read_bytes()
    with safe_open(sample, "numpy") as judge:
        assert set(table) == set(judge.keys())
        for name, info in table.items():
            theirs = judge.get_tensor(name)
            assert info.shape == theirs.shape
            assert raw[info.offset : info.offset + info.nbytes] == theirs.tobytes()


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def one(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not json", id="no JSON"),
        pytest.param(b"\xff\xfe\xff", id="no UTF-8"),
        pytest.param(b"[" * 100_000, id="nested without end"),
        pytest.param([1], id="a list"),
        pytest.param({"w": 5}, id="an entry that is a number"),
        pytest.param({"w": {"dtype": "F32"}}, id="an entry without shape"),
        pytest.param(one(dtype="F33"), id="an unknown dtype"),
        pytest.param(one(dtype=["F32"]), id="a dtype that is a list"),
        pytest.param(one(shape="ab"), id="a shape that is text"),
        pytest.param(one(shape=[-2]), id="a negative shape"),
        pytest.param(one(shape=[2.0]), id="a shape with a fraction"),
        pytest.param(one(shape=[True, 2]), id="a shape with a truth value"),
        pytest.param(one(shape=[3]), id="a shape of another size"),
        pytest.param(one(data_offsets=[8, 0]), id="offsets backwards"),
        pytest.param(one(data_offsets=[-8, 0]), id="a negative offset"),
        pytest.param(one(data_offsets=[0]), id="one offset"),
        pytest.param(one(data_offsets="08"), id="offsets that are text"),
    ],
)
def test_a_damaged_table_is_invalid(tmp_path: Path, header: Any) -> None:
    path = write(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(PagemillError, match=r"x\.safetensors") as caught:
        read_table(path)
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID
    with pytest.raises(SafetensorError), safe_open(path, "numpy"):  # the reference library refuses it as well
        pass


def test_a_file_of_something_else_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"PK\x03\x04 a zip, for instance" + bytes(100))
    with pytest.raises(PagemillError, match="not a safetensors file") as caught:
        read_table(path)
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID


def parse_damaged(path: Path, raw: bytes) -> dict[str, TensorInfo] | FailureReason:
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        return read_table(path)
    except PagemillError as error:
        return error.failure.reason
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * len(raw) + 200_000


def test_every_truncation_is_told(sample: Path, tmp_path: Path) -> None:
    raw = sample.read_bytes()
    for length in range(len(raw)):
        assert parse_damaged(tmp_path / "x.safetensors", raw[:length]) is FailureReason.MODEL_TRUNCATED, length


@pytest.mark.parametrize("length", [10**8, 10**8 + 1, 2**40, 2**63, 2**64 - 1])
def test_a_length_that_lies_allocates_nothing(tmp_path: Path, length: int) -> None:
    raw = struct.pack("<Q", length) + b"{}"
    assert isinstance(parse_damaged(tmp_path / "x.safetensors", raw), FailureReason)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_changed_byte_is_a_typed_error_or_a_parse_within_the_file(
    sample: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(sample.read_bytes())
    header_end = 8 + struct.unpack_from("<Q", raw)[0]
    raw[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    table = parse_damaged(tmp_path / "x.safetensors", bytes(raw))
    if not isinstance(table, FailureReason):
        assert all(8 <= info.offset <= info.offset + info.nbytes <= len(raw) for info in table.values())
