"""Fetching from a hub over real HTTP: once, resumable, checked, and every way it breaks in one typed line."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagemill import hub, hub_api, model_ref
from pagemill.embedding_config import EmbeddingConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect, resolve
from tests.pagemill.hub_server import HubServer, serve
from tests.pagemill.sample_encoders import write_sentence_files
from tests.pagemill.sample_models import write_folder

REPO = "org/tiny"


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    folder = write_folder(tmp_path / "source", shards=2)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    others = {
        "README.md": b"# tiny",
        "pytorch_model.bin": b"\x80evil",
        "onnx/model.onnx": b"x",
        "onnx/config.json": b"{}",
    }
    with serve(HubServer(repos={REPO: files | others})) as running:
        yield running


@pytest.fixture
def environ(server: HubServer, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": server.url, "PAGEMILL_MODELS": str(tmp_path / "models")}


def pull(environ: dict[str, str], model: str = REPO) -> Path:
    return hub.pull(model_ref.parse(model), environ=environ)


def refused(environ: dict[str, str], reason: FailureReason, model: str = REPO) -> str:
    with pytest.raises(PagemillError) as caught:
        pull(environ, model)
    assert caught.value.failure.reason is reason, caught.value
    return str(caught.value)


SERVED = {
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
}


def test_an_embedding_models_pooling_comes_along(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in write_folder(tmp_path / "source").iterdir()}
    sentence = {
        name: (write_sentence_files(tmp_path) / name).read_bytes() for name in ("modules.json", "1_Pooling/config.json")
    }
    with serve(HubServer(repos={REPO: files | sentence | {"2_Dense/model.safetensors": b"x"}})) as running:
        folder = pull({"HF_ENDPOINT": running.url, "PAGEMILL_MODELS": str(tmp_path / "models")})
    assert inspect(folder).embedding == EmbeddingConfig("mean")
    assert not (folder / "2_Dense").exists()


def test_a_model_is_fetched_whole_and_can_be_served(server: HubServer, environ: dict[str, str]) -> None:
    steps: list[tuple[int, int]] = []
    folder = hub.pull(model_ref.parse(REPO), lambda done, total: steps.append((done, total)), environ)
    assert folder == resolve(REPO, environ)
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == SERVED
    assert all((folder / name).read_bytes() == server.repos[REPO][name] for name in SERVED)
    assert inspect(folder).config.architecture == "LlamaForCausalLM"
    total = sum(len(server.repos[REPO][name]) for name in SERVED)
    assert steps == sorted(steps)
    assert steps[-1] == (total, total)
    manifest = json.loads((folder / hub.MANIFEST).read_text())
    assert (manifest["repo"], manifest["commit"], set(manifest["files"])) == (REPO, server.commit, SERVED)


def test_files_are_asked_for_by_commit(server: HubServer, environ: dict[str, str]) -> None:
    pull(environ)
    files = [seen.path for seen in server.seen if "/resolve/" in seen.path]
    assert len(files) == len(SERVED)
    assert all(path.startswith(f"/{REPO}/resolve/{server.commit}/") for path in files)


@pytest.mark.parametrize(("revision", "folder"), [("v1", "tiny@v1"), ("refs/pr/1", "tiny@refs--pr--1")])
def test_a_revision_has_its_own_folder(environ: dict[str, str], revision: str, folder: str) -> None:
    model = f"hf://{REPO}@{revision}"
    assert pull(environ, model).name == folder
    assert resolve(model, environ).name == folder
    refused(environ, FailureReason.MODEL_NOT_FOUND, f"{REPO}@v2")


def test_a_second_pull_fetches_nothing(server: HubServer, environ: dict[str, str]) -> None:
    pull(environ)
    first = server.fetched()
    pull(environ)
    assert server.fetched() == first


def test_a_file_of_another_size_is_fetched_again(server: HubServer, environ: dict[str, str]) -> None:
    folder = pull(environ)
    (folder / "config.json").write_text("{}")
    pull(environ)
    assert server.fetched()["config.json"] == 2
    assert inspect(folder).weights_bytes > 0


def test_a_new_commit_fetches_what_changed(server: HubServer, environ: dict[str, str]) -> None:
    folder = pull(environ)
    server.commit = "d" * 40
    server.repos[REPO]["config.json"] += b"\n"
    pull(environ)
    assert server.fetched() == {**dict.fromkeys(SERVED, 1), "config.json": 2}
    assert json.loads((folder / hub.MANIFEST).read_text())["commit"] == "d" * 40


def test_two_pulls_at_once_fetch_once(server: HubServer, environ: dict[str, str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: pull(environ), range(4)))
    assert len(folders) == 1
    assert server.fetched() == dict.fromkeys(SERVED, 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_broken_connection_goes_on_where_it_stopped(
    server: HubServer, environ: dict[str, str], chunked: bool
) -> None:
    name = "model-00002-of-00002.safetensors"
    server.breaks[name] = 1000
    server.chunked = chunked
    message = refused(environ, FailureReason.HUB_UNREACHABLE)
    assert "goes on from there" in message
    with pytest.raises(PagemillError, match="not whole"):  # what is half there is not served
        inspect(resolve(REPO, environ))
    pull(environ)
    again = [seen.headers.get("Range") for seen in server.seen if seen.path.endswith(name)]
    assert again[0] is None
    if chunked:  # what an aborted chunk held may be lost, no more
        assert again[1] is None or again[1].startswith("bytes=")
    else:
        assert f"after 1000 of {len(server.repos[REPO][name])} bytes" in message
        assert again[1] == "bytes=1000-"
    assert server.fetched() == dict.fromkeys(SERVED, 1) | {name: 2}, "what was complete is not fetched again"
    assert (resolve(REPO, environ) / name).read_bytes() == server.repos[REPO][name]


def test_a_hub_without_ranges_starts_anew(server: HubServer, environ: dict[str, str]) -> None:
    server.breaks["model-00001-of-00002.safetensors"] = 1000
    refused(environ, FailureReason.HUB_UNREACHABLE)
    server.ranges = False
    assert inspect(pull(environ)).weights_bytes > 0


def test_a_killed_pull_frees_its_lock_and_is_resumed(server: HubServer, environ: dict[str, str]) -> None:
    name = "model-00001-of-00002.safetensors"
    server.breaks[name], server.stall = 50_000, threading.Event()
    program = f"from pagemill import hub, model_ref; hub.CHUNK = 10_000; hub.pull(model_ref.parse({REPO!r}))"
    part = Path(environ["PAGEMILL_MODELS"]) / REPO / f"{name}.part"
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **environ}) as child:
        try:
            while not part.exists() or part.stat().st_size < 50_000:
                assert child.poll() is None
                time.sleep(0.01)
        finally:
            child.kill()
    server.stall.set()
    folder = pull(environ)
    assert "bytes=50000-" in [seen.headers.get("Range") for seen in server.seen]
    assert (folder / name).read_bytes() == server.repos[REPO][name]
    assert not list(folder.glob("*.part"))


def test_a_part_longer_than_the_file_is_thrown_away(server: HubServer, environ: dict[str, str]) -> None:
    folder = Path(environ["PAGEMILL_MODELS"]) / REPO
    folder.mkdir(parents=True)
    (folder / "config.json.part").write_bytes(bytes(100_000))
    assert (pull(environ) / "config.json").read_bytes() == server.repos[REPO]["config.json"]


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])  # git's blob id, and sha256
def test_a_wrong_checksum_is_told_and_the_file_removed(server: HubServer, environ: dict[str, str], name: str) -> None:
    server.corrupt.add(name)
    assert name in refused(environ, FailureReason.CHECKSUM_MISMATCH)
    folder = Path(environ["PAGEMILL_MODELS"]) / REPO
    assert not (folder / name).exists()
    assert not (folder / f"{name}.part").exists()
    assert not (folder / hub.MANIFEST).exists()
    server.corrupt.clear()
    assert inspect(pull(environ)).weights_bytes > 0


@pytest.mark.parametrize("code", [401, 403])
def test_a_gated_model_says_what_to_set(server: HubServer, environ: dict[str, str], code: int) -> None:
    server.token, server.refusal = "hf_right", code
    assert "HF_TOKEN" in refused(environ, FailureReason.GATED_MODEL)
    message = refused(environ | {"HF_TOKEN": "hf_wrong"}, FailureReason.GATED_MODEL)
    assert "hf_wrong" not in message
    pull(environ | {"HF_TOKEN": "hf_right\n"})  # as a mounted secret often ends


@pytest.mark.parametrize("token", ["a\nb", "a\r\nX-Injected: 1", "ä€"])
def test_a_token_that_cannot_be_one_is_not_shown(server: HubServer, environ: dict[str, str], token: str) -> None:
    message = refused(environ | {"HF_TOKEN": token}, FailureReason.INVALID_CONFIGURATION)
    assert "HF_TOKEN" in message
    assert token not in message
    assert server.seen == []


def test_the_token_stays_with_the_hub_when_files_lie_elsewhere(server: HubServer, environ: dict[str, str]) -> None:
    server.token = "hf_secret"
    with serve(
        HubServer(repos={REPO: {f"{name}?signature=abc": data for name, data in server.repos[REPO].items()}})
    ) as cdn:
        server.storage = cdn.url
        cdn.breaks["model-00001-of-00002.safetensors"] = 500
        refused(environ | {"HF_TOKEN": "hf_secret"}, FailureReason.HUB_UNREACHABLE)
        folder = pull(environ | {"HF_TOKEN": "hf_secret"})
    assert inspect(folder).weights_bytes > 0
    assert cdn.seen
    assert not any("Authorization" in seen.headers or "hf_secret" in str(seen.headers) for seen in cdn.seen)
    assert all(seen.headers["Authorization"] == "Bearer hf_secret" for seen in server.seen)
    assert "bytes=500-" in [seen.headers.get("Range") for seen in cdn.seen], (
        "a resumed file keeps its range over a redirect"
    )


def test_a_renamed_gated_model_keeps_the_token_on_the_hub(server: HubServer, environ: dict[str, str]) -> None:
    server.token, server.renamed = "hf_secret", {"org/old": REPO}
    folder = pull(environ | {"HF_TOKEN": "hf_secret"}, "org/old")
    assert folder.name == "old"
    assert inspect(folder).weights_bytes > 0


def test_a_model_that_is_not_there(environ: dict[str, str]) -> None:
    assert "org/other" in refused(environ, FailureReason.MODEL_NOT_FOUND, "org/other")
    assert not (Path(environ["PAGEMILL_MODELS"]) / "org" / "other").exists()


@pytest.mark.parametrize("names", [("pytorch_model.bin",), ("model.pt", "config.json"), ("weights.pth",)])
def test_pickles_alone_are_refused_and_never_fetched(
    server: HubServer, environ: dict[str, str], names: tuple[str, ...]
) -> None:
    server.repos[REPO] = dict.fromkeys(names, b"\x80")
    assert "pickles" in refused(environ, FailureReason.UNSAFE_MODEL_FORMAT)
    assert not server.fetched()


def test_which_files_are_fetched(server: HubServer, environ: dict[str, str]) -> None:
    server.repos["org/none"] = {"README.md": b"x"}
    refused(environ, FailureReason.MODEL_NOT_FOUND, "org/none")
    server.repos["org/ggufs"] = {"a.gguf": b"GGUF", "b.gguf": b"GGUF"}
    assert "a.gguf, b.gguf" in refused(environ, FailureReason.MODEL_INVALID, "org/ggufs")
    server.repos["org/gguf"] = {"a.gguf": b"GGUF", "config.json": b"{}"}
    assert {path.name for path in pull(environ, "org/gguf").glob("[!.]*")} == {"a.gguf", "config.json"}
    copies = {"model.safetensors": b"w", "consolidated.safetensors": b"w", "adapter_model.safetensors": b"w"}
    server.repos["org/copies"] = copies | {"tokenizer.json": b"{}", "chat_template.jinja": b"", "x.gguf": b"GGUF"}
    fetched = {path.name for path in pull(environ, "org/copies").glob("[!.]*")}
    assert fetched == {"model.safetensors", "tokenizer.json", "chat_template.jinja"}
    templates = {"chat_template.jinja": b"", "additional_chat_templates/tool_use.jinja": b"t", "assets/x.jinja": b""}
    server.repos["org/templates"] = {"model.safetensors": b"w"} | templates
    folder = pull(environ, "org/templates")
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_bytes() == b"t"
    assert not (folder / "assets").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>a captive portal</html>",
        b"[]",
        b"{}",
        b'{"sha": "c"}',
        b'{"sha": "c", "siblings": ["x"]}',
        b'{"sha": "c", "siblings": [{"size": 1}]}',
        b'{"sha": "c", "siblings": [{"rfilename": "../../etc/cron.d/x.json", "size": 1}]}',
        b'{"sha": "c", "siblings": [{"rfilename": "/etc/x.json", "size": 1}]}',
        b'{"sha": "c", "siblings": [{"rfilename": "a\\u0000.json", "size": 1}]}',
        b'{"sha": "c", "siblings": [{"rfilename": "a.json", "size": "big"}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_hub_is_told(server: HubServer, environ: dict[str, str], body: bytes, tmp_path: Path) -> None:
    server.answer = (200, body)
    assert "HF_ENDPOINT" in refused(environ, FailureReason.HUB_UNREACHABLE)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_hub_in_trouble_says_its_code(server: HubServer, environ: dict[str, str], code: int) -> None:
    server.answer = (code, b"")
    assert str(code) in refused(environ, FailureReason.HUB_UNREACHABLE)


def test_a_hub_that_is_not_there(environ: dict[str, str]) -> None:
    with socket.socket() as closed:  # bound and not listening: nobody answers on this port
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert address in refused(environ | {"HF_ENDPOINT": address}, FailureReason.HUB_UNREACHABLE)


def test_a_hub_that_hangs_up_while_it_lists(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def half_an_answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"sha"')

        with ThreadPoolExecutor(1) as pool:
            pool.submit(half_an_answer)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            refused(environ | {"HF_ENDPOINT": address}, FailureReason.HUB_UNREACHABLE)


def test_a_hub_that_falls_silent(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_api, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "timed out" in refused(environ | {"HF_ENDPOINT": address}, FailureReason.HUB_UNREACHABLE)


@pytest.mark.parametrize(
    "endpoint", ["ftp://host", "huggingface.co", "file:///etc", "http://[::1", "http://h:port", "http://"]
)
def test_an_endpoint_that_is_no_address(environ: dict[str, str], endpoint: str) -> None:
    with pytest.raises(PagemillError, match="HF_ENDPOINT"):
        pull(environ | {"HF_ENDPOINT": endpoint})


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_a_full_disk(server: HubServer, environ: dict[str, str], name: str) -> None:
    folder = Path(environ["PAGEMILL_MODELS"]) / REPO
    folder.mkdir(parents=True)
    (folder / f"{name}.part").symlink_to("/dev/full")  # the kernel's own ENOSPC, without a disk to fill
    assert str(folder) in refused(environ, FailureReason.DISK_FULL)
    assert not (folder / name).exists()
    (folder / f"{name}.part").unlink()
    assert inspect(pull(environ)).weights_bytes > 0


def test_a_models_folder_that_cannot_be_written(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    message = refused(environ | {"PAGEMILL_MODELS": str(tmp_path / "file")}, FailureReason.INVALID_CONFIGURATION)
    assert "models folder" in message
