"""The table of speed: what is compared with what, the machine's limit, the peers' protocol, and a whole run on a tiny model."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import processes, quiet, roofline, speed, speed_figures, workloads
from benchmarks.measure import Sample, summarise
from benchmarks.peers import gguf_16bit, http_server, lines, registry
from benchmarks.peers.contestant import PeerError
from benchmarks.roofline import Rates
from benchmarks.speed_figures import FIGURES, INT8, OURS
from benchmarks.workloads import Prompt, Workload
from pagemill.model_files import inspect, resolve
from tests.server.tiny_gguf import write_tiny_gguf

CLOSED = Workload("w2", "closed", True, 2, (), ())
PROMPTS = [Prompt((1, 2, 3), "abc", 2), Prompt((4,), "d", 1)]


def figure(name: str) -> speed_figures.Figure:
    return next(figure for figure in FIGURES if figure.name == name)


def test_a_ratio_is_of_the_best_peer_rep_by_rep() -> None:
    values = {
        ("W1 output", OURS): [100.0, 50.0, 90.0],
        ("W1 output", "slow"): [10.0, 10.0, 10.0],
        ("W1 output", "good"): [50.0, 40.0, 90.0],
    }
    found = speed_figures.verdict(figure("W1 output"), values)
    assert found == speed_figures.Verdict("good", 1.25, True)


def test_less_is_better_where_it_is_a_time() -> None:
    values = {("W4 TTFT p99", OURS): [30.0], ("W4 TTFT p99", "a"): [20.0], ("W4 TTFT p99", "b"): [40.0]}
    assert speed_figures.verdict(figure("W4 TTFT p99"), values) == speed_figures.Verdict("a", 1.5, False)


def test_int8_is_compared_with_sixteen_bits_of_peers_and_the_start_with_openvino_alone() -> None:
    values = {("W2 decode", INT8): [100.0], ("W2 decode", OURS): [60.0], ("W2 decode", "a"): [50.0]}
    assert speed_figures.verdict(figure("W2 decode, int8"), values) == speed_figures.Verdict("a", 2.0, True)
    assert speed_figures.verdict(figure("W2 decode"), values) == speed_figures.Verdict("a", 1.2, False)
    start = "start to first token"
    values = {(start, OURS): [4.0], (start, "llamacpp"): [1.0], (start, "openvino"): [5.0]}
    assert speed_figures.verdict(figure(start), values) == speed_figures.Verdict("openvino", 0.8, True)


def test_without_a_peer_there_are_figures_and_no_ratio() -> None:
    values = {("W1 output", OURS): [100.0, 120.0]}
    assert speed_figures.verdict(figure("W1 output"), values) is None
    header, row = speed_figures.table([OURS], values)
    assert header.split()[:2] == ["figure", OURS]
    assert row == "W1 output, tok/s  110 (100-120)                    >= 1.25"


def test_what_a_run_gives_and_a_failed_run_does_not() -> None:
    sample = Sample(0.0, 3, end=1.0, chunks=[0.5, 0.75, 1.0], output_tokens=3)
    found = speed_figures.of_run("w2", summarise([sample]))
    assert (found["W2 TTFT p50"], found["W2 TPOT"], found["W2 decode"]) == (500.0, 250.0, 4.0)
    assert speed_figures.of_run("w2", summarise([replace(sample, error="no")])) == {}
    assert speed_figures.of_run("w2", summarise([replace(sample, output_tokens=2)])) == {}


def test_the_roofline_is_its_formula(tmp_path: Path) -> None:
    config = inspect(resolve(str(write_tiny_gguf(tmp_path)))).config
    prompts = [Prompt((1,) * 10, "", 4), Prompt((1,) * 30, "", 4)]
    work = roofline.work(config, prompts, at_a_time=2)
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    size, head_dim = config.hidden_size, config.head_dim
    layer = size * head_dim * (heads + 2 * kv) + heads * head_dim * size + 3 * size * config.intermediate_size
    head = config.vocab_size * size
    assert work.prompt_flop == 2 * (config.num_hidden_layers * layer * 40 + head * 2)
    cached = 2 * config.num_hidden_layers * kv * head_dim
    assert work.decode_bytes == 2 * ((config.num_hidden_layers * layer + head) * 4 + cached * (4 * 12 + 4 * 32))
    rates = Rates(read_bytes_s=work.decode_bytes, float32_flop_s=work.prompt_flop, bfloat16_flop_s=1.0, threads=2)
    assert work.seconds(rates) == 2.0
    assert work.output_tok_s(rates) == 4.0


def test_the_rates_are_measured() -> None:
    rates = roofline.measure(threads=1, runs=1, read_bytes=1 << 20, size=32)
    assert min(rates.read_bytes_s, rates.float32_flop_s, rates.bfloat16_flop_s) > 0
    assert rates.flop_s == max(rates.float32_flop_s, rates.bfloat16_flop_s)


def test_a_quiet_machine_is_not_waited_for_and_a_busy_one_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter([0.0, 0.0, 10.0, 10.0])
    monkeypatch.setattr(processes, "machine_seconds", lambda: (next(busy), 0.0))
    monkeypatch.setattr(processes, "cpu_seconds", lambda pid: 0.0)
    assert quiet.wait(look=0.0).others == 0.0
    assert quiet.wait(look=0.0, patience=0.0).others == 0.0  # nothing more than in the look before
    busy = iter([0.0, 10.0])
    assert quiet.wait(look=0.0, patience=0.0).others > 1.0


def test_a_process_has_memory_and_time() -> None:
    import os

    assert os.getpid() in processes.tree(os.getpid())
    assert processes.peak_bytes(os.getpid()) > 1_000_000
    assert processes.cpu_seconds(os.getpid()) > 0


def test_a_gguf_is_copied_with_sixteen_bits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.setenv("PAGEMILL_BENCH_CACHE", str(tmp_path / "cache"))
    source = write_tiny_gguf(tmp_path)
    path = gguf_16bit.converted(str(source), "f16")
    assert path.parent == tmp_path / "cache"
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(path)
    for name, field in before.fields.items():
        if not name.startswith("GGUF.") and name != "general.file_type":
            assert after.fields[name].contents() == field.contents(), name
    assert {tensor.name: tuple(tensor.shape) for tensor in after.tensors} == {
        tensor.name: tuple(tensor.shape) for tensor in before.tensors
    }
    kinds = {len(tensor.shape): tensor.tensor_type.name for tensor in after.tensors}
    assert kinds == {1: "F32", 2: "F16"}
    stamp = path.stat().st_mtime_ns
    assert gguf_16bit.converted(str(source), "f16").stat().st_mtime_ns == stamp


def test_a_folder_of_safetensors_is_no_gguf(tiny: str) -> None:
    with pytest.raises(ValueError, match="only a GGUF is converted"):
        gguf_16bit.converted(tiny, "f16")


PROGRAM = """
import json, sys
print('a library says something')
print(json.dumps({'event': 'ready'})); print(json.dumps({'event': 'first'}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if 'texts' in asked:
        print(json.dumps({'seconds': len(asked['texts']) / 2}), flush=True)
        continue
    print(json.dumps({'samples': [
        {'start': p['arrival'], 'wanted_tokens': p['max_tokens'], 'end': 1.0, 'chunks': [0.5],
         'prompt_tokens': len(p['ids']), 'output_tokens': p['max_tokens']} for p in asked['prompts']]}), flush=True)
"""


async def test_a_program_that_talks_lines_is_a_contestant() -> None:
    with lines.talking("fake", [sys.executable, "-c", PROGRAM]) as fake:
        assert fake.replay is not None
        assert 0 < fake.ready_s <= fake.first_token_s
        samples = await fake.replay(CLOSED, PROMPTS)
        assert [(sample.prompt_tokens, sample.output_tokens, sample.chunks) for sample in samples] == [
            (3, 2, [0.5]),
            (1, 1, [0.5]),
        ]
        (sample, _) = await fake.replay(replace(CLOSED, stream=False), PROMPTS)
        assert sample.chunks == []
    with lines.talking("fake", [sys.executable, "-c", PROGRAM], embeds=True) as fake:
        assert fake.embed is not None
        assert await fake.embed(["a", "b"], 16, 4) == 1.0


@pytest.mark.parametrize("start", [
    lambda command: lines.talking("fake", command),
    lambda command: http_server.serving("fake", lambda port: command, model="m", ready_path="/health"),
])  # fmt: skip
def test_one_that_ends_says_why(start: Callable[[list[str]], object]) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model here')"]
    with pytest.raises(PeerError, match=r"exit code 1(.|\n)*no such model here"), start(command):  # type: ignore[attr-defined]
        raise AssertionError("it runs")


def test_a_peer_that_is_not_there_says_how_it_would_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("LLAMA_SERVER", "OPENVINO_PYTHON", "VLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    assert speed.installed(None, ["w1"]) == []
    said = capsys.readouterr().out
    assert [line.split(":")[1].strip() for line in said.splitlines()] == [
        "llamacpp",
        "llamacpp-bf16",
        "openvino",
        "vllm",
    ]
    assert "LLAMA_SERVER" in said
    assert "OPENVINO_PYTHON" in said


def test_peers_that_are_there_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", sys.executable)
    monkeypatch.setenv("OPENVINO_PYTHON", sys.executable)
    found = speed.installed(["llamacpp", "openvino", "sentence-transformers"], list(speed.WHAT))
    assert [peer.name for peer in found] == ["llamacpp", "openvino", "sentence-transformers"]
    assert set(registry.peers()) >= {"llamacpp", "llamacpp-bf16", "openvino", "vllm", "sentence-transformers"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["w9"], "there is no figure 'w9'"), (["--peers", "x"], "no peer 'x'"), (["--reps", "0"], "at least")],
)
def test_a_wrong_call_says_what_to_change(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        speed.parse(argv)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_without_words_everything_is_measured_and_int8_beside_w2() -> None:
    args = speed.parse(["--", "--max-num-seqs", "8"])
    assert (args.what, args.reps, args.open_reps) == (list(speed.WHAT), 3, 3)
    assert [peer.name for peer in speed.contestants(args)] == [OURS, INT8]
    assert [peer.name for peer in speed.contestants(speed.parse(["w1"]))] == [OURS]


def test_sentences_have_twenty_tokens() -> None:
    codec = SimpleNamespace(encode=lambda text: [ord(c) for c in text], decode=lambda ids: "".join(map(chr, ids)))
    w5 = workloads.w5(codec, 1)
    assert (w5.batch, w5.concurrency, len(w5.warmup)) == (16, 4, 64)
    assert [len(variant) for variant in w5.variants] == [256] * workloads.VARIANTS
    assert {len(text) for variant in w5.variants for text in variant} == {20}
    assert len({text for variant in w5.variants for text in variant}) == 256 * workloads.VARIANTS


def test_our_server_is_measured_from_start_to_table(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["start", "w1", "w2", "--peers", "", "--reps", "1", "--requests", "2", "--patience", "0", "--no-roofline"]
    flags += ["--no-int8", "--model", tiny, "--out", str(tmp_path / "speed.json")]
    assert speed.main([*flags, "--", "--kv-cache-memory-bytes", "16MiB", "--max-num-seqs", "4"]) == 0
    document = json.loads((tmp_path / "speed.json").read_text())
    measured = {entry["figure"]: entry["values"] for entry in document["values"]}
    assert {"W1 output", "W2 TPOT", "start to first token", "peak memory"} <= measured.keys()
    assert all(value > 0 for values in measured.values() for value in values)
    assert [start["rep"] for start in document["starts"]] == [0, 1]
    assert {run["workload"] for run in document["runs"]} == {"w1", "w2"}
    assert "W1 output, tok/s" in capsys.readouterr().out


def test_what_was_started_ends_with_us() -> None:
    """Also when somebody ends us with SIGTERM."""
    program = (
        "import sys, time; from benchmarks.peers import process; process.end_cleanly()\n"
        "with process.started('x', [sys.executable, '-c', 'import time; time.sleep(600)']) as (running, _):\n"
        "    print(running.pid, flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root) as us:
        assert us.stdout is not None
        started = int(us.stdout.readline())
        us.terminate()
        assert us.wait(timeout=60) == 128 + 15
    assert not Path(f"/proc/{started}").exists()
