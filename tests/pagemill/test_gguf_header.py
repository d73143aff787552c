"""GGUF headers: what llama.cpp's own writer writes is read as its own reader reads it, and damage ends in one typed error."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill.failures import FailureReason, PagemillError
from pagemill.gguf_header import GGUFHeader, read_header
from tests.pagemill.sample_models import HIDDEN, write_gguf


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "sample.gguf")


def test_metadata_and_tensors_are_what_the_gguf_package_reads(sample: Path) -> None:
    header, judge = read_header(sample), gguf.GGUFReader(sample)
    for name, field in judge.fields.items():
        if not name.startswith("GGUF."):
            assert header.metadata[name] == field.contents(), name
    assert len(header.tensors) == len(judge.tensors)
    raw = sample.read_bytes()
    for theirs in judge.tensors:
        ours = header.tensors[theirs.name]
        assert ours.dtype == theirs.tensor_type.name
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
        assert raw[ours.offset : ours.offset + ours.nbytes] == theirs.data.tobytes()


def test_every_quantisation_has_llama_cpps_own_block_sizes() -> None:
    from pagemill.gguf_header import TYPES

    for number, (name, block, size) in TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (block, size)


def test_alignment_and_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("u8", 7)
    writer.add_int8("i8", -7)
    writer.add_uint64("u64", 2**63)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("text", "ä\n")
    writer.add_array("nested", [["a", "b"], ["c"]])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_tensor("w", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    expected = {"u8": 7, "i8": -7, "u64": 2**63, "f64": 0.1, "bool": True, "text": "ä\n"}
    expected |= {"nested": [["a", "b"], ["c"]], "floats": [0.5, 1.5]}
    assert {key: header.metadata[key] for key in expected} == expected
    info = header.tensors["w"]
    assert (info.dtype, info.shape, info.offset % 64) == ("F16", (2, 3), 0)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", FailureReason.MODEL_TRUNCATED),
        (b"GGUF", FailureReason.MODEL_TRUNCATED),
        (b"PK\x03\x04" + bytes(100), FailureReason.MODEL_INVALID),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), FailureReason.MODEL_INVALID),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), FailureReason.MODEL_INVALID),  # big-endian
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), FailureReason.MODEL_TRUNCATED),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), FailureReason.MODEL_TRUNCATED),
    ],
)
def test_files_that_are_none(tmp_path: Path, raw: bytes, reason: FailureReason) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    with pytest.raises(PagemillError, match=r"x\.gguf") as caught:
        read_header(path)
    assert caught.value.failure.reason is reason


def entry(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    head = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


@pytest.mark.parametrize(
    ("entries", "tensors"),
    [
        pytest.param([entry("general.alignment", 8, struct.pack("<Q", 2) + b"32")], [], id="alignment is text"),
        pytest.param([entry("general.alignment", 6, struct.pack("<f", float("inf")))], [], id="alignment is infinite"),
        pytest.param([entry("general.alignment", 5, struct.pack("<i", -32))], [], id="alignment is negative"),
        pytest.param([entry("general.alignment", 4, struct.pack("<I", 0))], [], id="alignment is zero"),
        pytest.param([entry("k", 99, b"")], [], id="unknown kind of value"),
        pytest.param([entry("k", 9, struct.pack("<IQ", 9, 1) * 100_000)], [], id="arrays nested without end"),
        pytest.param([], [tensor("w", (32,), 4)], id="a type that was removed"),
        pytest.param([], [tensor("w", (31, 2), 3)], id="a row that is no whole number of blocks"),
        pytest.param([], [tensor("w", (1,) * 200, 0)], id="two hundred dimensions"),
    ],
)
def test_headers_that_no_writer_writes_are_invalid(tmp_path: Path, entries: list[bytes], tensors: list[bytes]) -> None:
    path = tmp_path / "x.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    path.write_bytes(head + b"".join(entries) + b"".join(tensors) + bytes(4096))
    with pytest.raises(PagemillError, match=r"x\.gguf") as caught:
        read_header(path)
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID


@pytest.mark.parametrize("shape", [(2**62, 4), (2**40,), (HIDDEN, 2**63)])
def test_a_tensor_larger_than_the_file_is_truncated(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor("w", shape, 0) + bytes(64))
    with pytest.raises(PagemillError, match="cut short") as caught:
        read_header(path)
    assert caught.value.failure.reason is FailureReason.MODEL_TRUNCATED


def parse_damaged(path: Path, raw: bytes) -> GGUFHeader | None:
    """Parse, or end in a PagemillError; more memory than a few times the file is a failure of the test."""
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        return read_header(path)
    except PagemillError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * len(raw) + 200_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_truncation_is_told(sample: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = sample.read_bytes()
    assert parse_damaged(tmp_path / "x.gguf", raw[: data.draw(st.integers(0, len(raw) - 64))]) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_changed_byte_is_a_typed_error_or_a_parse_within_the_file(
    sample: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(sample.read_bytes())
    header_end = min(info.offset for info in read_header(sample).tensors.values())
    raw[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    header = parse_damaged(tmp_path / "x.gguf", bytes(raw))
    if header is not None:
        assert all(info.offset + info.nbytes <= len(raw) for info in header.tensors.values())


@pytest.mark.parametrize("strategy", ["random", "magic"])
def test_noise_is_told(tmp_path: Path, strategy: str) -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        noise = random.integers(0, 256, 512, dtype=np.uint8).tobytes()
        raw = noise if strategy == "random" else b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + noise
        assert parse_damaged(tmp_path / "x.gguf", raw) is None
