"""The optional webhook over HTTPS: reads an AdmissionReview, asks `admission`, answers.

A handler of its own and not kopf's: kopf would load a certificate once, end the operator where there is none yet, and judge only on
the leader's watch. This one waits for its certificate, takes a renewed one over without a pause, and answers on every replica.
Nothing it meets keeps anybody from applying: what it can't read or judge is allowed, and an operator that is down is passed over
(failurePolicy: Ignore). Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from pagemill_operator.admission import Verdict

PATH = "/validate"
_LOOK_SECONDS = 5.0  # between two looks at the certificate's files
_LARGEST = 4 << 20  # bytes; an object in etcd has less
_LOG = logging.getLogger("pagemill.admission")

Judge = Callable[[Mapping[str, Any]], Awaitable[Verdict]]


@contextlib.asynccontextmanager
async def admitting(port: int | None, certificate: str, key: str, judge: Judge) -> AsyncIterator[None]:
    """Answer at `port` as long as this is open, from when the certificate is there; nothing where there is no port."""
    if port is None:
        yield
        return
    serving = asyncio.create_task(_serve(port, Path(certificate), Path(key), judge))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _serve(port: int, certificate: Path, key: Path, judge: Judge) -> None:
    app = web.Application(client_max_size=_LARGEST)
    app.router.add_post(PATH, _answering(judge))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    context = _new_context()
    loaded, said, listening = "", "", False
    try:
        while True:
            seen = _stamp(certificate, key)
            if seen != loaded:
                try:
                    _new_context().load_cert_chain(certificate, key)  # one that fails would spoil the one in use
                    context.load_cert_chain(certificate, key)  # what connects from now on gets it
                    loaded, said = seen, ""
                    if not listening:
                        await web.TCPSite(runner, port=port, ssl_context=context).start()
                        listening = True
                    _LOG.info("the admission webhook answers at port %d", port)
                except (OSError, ssl.SSLError) as error:  # not there yet, or one of the two is still the old one
                    if str(error) != said:
                        said = str(error)
                        _LOG.warning("the admission webhook waits for %s and %s: %s", certificate, key, error)
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await runner.cleanup()


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _stamp(*files: Path) -> str:
    """Changes whenever a file does; a mounted Secret is swapped as a whole, by a link."""
    with contextlib.suppress(OSError):
        return " ".join(f"{file.resolve()}:{file.stat().st_mtime_ns}:{file.stat().st_size}" for file in files)
    return "missing"


def _answering(judge: Judge) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            asked = (await request.json(loads=json.loads))["request"]
            uid = str(asked["uid"])
        except (ValueError, KeyError, TypeError):
            return web.Response(status=400, text="send an AdmissionReview of admission.k8s.io/v1")
        return web.json_response(
            review(uid, await judge(asked))
        )  # a bug of ours is a 500, which is passed over as well

    return answer


def review(uid: str, verdict: Verdict) -> dict[str, Any]:
    """The AdmissionReview that answers. Kubernetes shows warnings of 120 characters whole, and no empty ones."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.refusal is None}
    if verdict.refusal is not None:
        response["status"] = {"code": 422, "reason": "Invalid", "message": verdict.refusal}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
