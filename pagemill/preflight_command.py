"""`pagemill preflight`: a look at a model before GPUs are taken for it, by a Job on CPU with the replicas' image, env and cache.

Finds the model as the server would, pins a hub's to its commit, brings it into a shared cache or reads its headers only, and asks
`memory_fit`. Its last line, for the operator, is a `Report` or a `Failure`. Imports nothing that takes time: it runs before every
new template.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagemill import hub, model_ref, model_source
from pagemill.endpoints import TERMINATION_LOG_ENV
from pagemill.failures import Failure, FailureReason, PagemillError, write_termination
from pagemill.fit_request import GIB, Ask, judge
from pagemill.hub_api import Hub
from pagemill.hub_headers import fetch_headers
from pagemill.model_files import ModelFiles, hub_folder, inspect
from pagemill.model_ref import ModelRef
from pagemill.preflight_progress import Progress, answer, end_when_it_stands, say
from pagemill.preflight_report import Report
from pagemill.sizes import format_size, parse_size

_BETWEEN = 2.0  # seconds between two tries of a download that breaks off


@dataclass(frozen=True, slots=True)
class Found:
    """A model, and what names it for good."""

    files: ModelFiles
    revision: str | None = None  # the hub's commit
    pinned: str | None = None  # the reference that is to be served; None: the given one


def preflight(argv: list[str]) -> int:
    """0 when MODEL can be served; raises PagemillError, after it has left its line for the operator."""
    args = parser().parse_known_args(argv)[0]  # the other flags are the server's
    environ = {**os.environ, TERMINATION_LOG_ENV: args.report} if args.report else os.environ
    try:
        report = _look(args, environ)
    except PagemillError as error:
        write_termination(error.failure, environ)
        raise
    if path := environ.get(TERMINATION_LOG_ENV):
        _write(report, Path(path))
    say("passed" if report.fit == "Fits" else "passed; whether it fits the GPU is not known")
    return 0


def _write(report: Report, path: Path) -> None:
    try:
        path.write_text(report.to_line() + "\n", encoding="utf-8")
    except OSError as error:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"{path} can't be written ({error.strerror or error}): see --report"
        ) from None


def parser() -> argparse.ArgumentParser:
    """Of what the Job is given."""
    found = argparse.ArgumentParser(
        prog="pagemill preflight",
        description="Look at a model before GPUs are taken for it: is it there, may we have it, does it fit.",
        epilog="Those flags of `pagemill serve` that divide memory count as there; the others are ignored.",
        allow_abbrev=False,
    )
    found.add_argument("model", help="as `pagemill serve` takes it")
    found.add_argument("--revision", metavar="COMMIT", help="a hub model's, known from before")
    found.add_argument("--fetch", action="store_true", help="bring a hub model into the models folder")
    found.add_argument("--memory", metavar="SIZE", help="of one GPU; on CPU what the server's container may use")
    found.add_argument("--report", metavar="FILE", help=f"where the last line goes (default: ${TERMINATION_LOG_ENV})")
    found.add_argument("--progress-port", type=int, metavar="PORT", help="answer /ready there, as a replica does")
    found.add_argument("--startup-timeout", type=float, default=600, metavar="SECONDS", help="without progress")
    served = found.add_argument_group("as for pagemill serve")
    served.add_argument("--device", default="cuda")
    served.add_argument("--dtype", default="auto")
    served.add_argument("--quantization", default="none")
    served.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    for flag in (
        "--block-size",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--tensor-parallel-size",
    ):
        served.add_argument(flag, type=int)
    served.add_argument("--kv-cache-memory-bytes", metavar="SIZE")
    served.add_argument("--kv-offloading-size", type=float, metavar="GIB")
    return found


def _look(args: argparse.Namespace, environ: Mapping[str, str]) -> Report:
    found = _find(args, environ)
    judged = judge(asked(args), found.files)
    if judged.failure is not None:
        raise PagemillError(judged.failure.reason, judged.failure.message, judged.failure.suggestion)
    files = found.files
    say(f"{found.pinned or args.model}: {files.config.architecture}, {format_size(files.weights_bytes)} of weights")
    return Report(judged.fit, found.revision, found.pinned, judged.capacity)


def asked(args: argparse.Namespace) -> Ask:
    """What `memory_fit` is asked."""
    return Ask(
        on_cpu=args.device == "cpu",
        memory=parse_size(args.memory) if args.memory else None,
        utilization=args.gpu_memory_utilization,
        dtype=args.dtype,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        kv_cache=parse_size(args.kv_cache_memory_bytes) if args.kv_cache_memory_bytes else None,
        host_cache=int((args.kv_offloading_size or 0) * GIB),
        gpus=args.tensor_parallel_size or 1,
        quantization=args.quantization,
    )


def _find(args: argparse.Namespace, environ: Mapping[str, str]) -> Found:
    """On this machine first, as the server looks; then what a former look has fetched; then at the hub."""
    ref = model_ref.parse(args.model)
    if (files := model_source.find(args.model, environ)) is not None:
        commit = hub.recorded_commit(files.folder) if ref.kind == "hub" else None
        return Found(files, revision=commit)
    known = ModelRef("hub", ref.location, args.revision) if args.revision else None
    if known is not None and hub.recorded_commit(folder := hub_folder(known, environ)) == args.revision:
        return Found(inspect(folder), args.revision, _name(known))
    say(f"{args.model} is not on this machine: asking the hub")
    return _from_hub(known or ref, args, environ)


def _from_hub(ref: ModelRef, args: argparse.Namespace, environ: Mapping[str, str]) -> Found:
    server = Hub(environ)
    revision = server.revision(ref)
    pinned = ModelRef("hub", ref.location, revision.commit)
    model_ref.parse(_name(pinned))  # whatever names a commit becomes a folder's name
    say(f"{ref.location} is at {revision.commit}, {format_size(revision.size)}")
    progress = Progress(ref.location)
    if args.progress_port:
        answer(progress, args.progress_port)
    folder = hub_folder(pinned, environ)
    end_when_it_stands(progress, args.startup_timeout, folder, lambda failure: _end(failure, environ))
    if args.fetch:
        return Found(inspect(_pull(pinned, progress, environ)), revision.commit, _name(pinned))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        try:
            fetch_headers(server, revision, Path(place), progress.moved)
            files = inspect(Path(place))
        except PagemillError as error:  # a folder that nobody will find is not what is wrong
            told = error.failure.message.replace(place, f"{ref.location}@{revision.commit[:12]}")
            raise PagemillError(error.failure.reason, told, error.failure.suggestion) from None
    return Found(files, revision.commit, _name(pinned))


def _pull(ref: ModelRef, progress: Progress, environ: Mapping[str, str]) -> Path:
    """Fetch, again and again as long as each try brings something: a connection that breaks is no reason to give up."""
    while True:
        before = progress.done
        try:
            return hub.pull(ref, progress, environ)
        except PagemillError as error:
            if error.failure.reason is not FailureReason.HUB_UNREACHABLE or progress.done <= before:
                raise
            say(f"{error}")
        time.sleep(_BETWEEN)


def _name(ref: ModelRef) -> str:
    return f"hf://{ref.location}@{ref.revision}"


def _end(failure: Failure, environ: Mapping[str, str]) -> None:
    """From a thread, while another waits for a disk or a lock that may never answer."""
    write_termination(failure, environ)
    sys.stderr.write(f"pagemill preflight: {failure.message}\n")
    sys.stderr.flush()
    os._exit(1)
