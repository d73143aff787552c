"""The life of a server: bind → answer /health → load in a thread → serve → stop as design.md's rule for stops says.

A stop, whatever asked for it: readiness off; for the lame duck's time everything is still served, with `Connection: close`; then
new requests get 503 with Retry-After while what runs may finish within the shutdown timeout; what is left ends with an error
event. A second signal skips the waiting. Called by `cli`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from functools import partial

import uvicorn
import uvloop
from starlette.types import ASGIApp

from pagemill import garbage
from pagemill import metrics as metric_names
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles
from pagemill_server import beside, cuda_failures
from pagemill_server.api.access_log import LogFormat, Traces
from pagemill_server.api.app import make_app
from pagemill_server.api.http_protocol import HttpProtocol
from pagemill_server.api.key_ring import KeyRing
from pagemill_server.api.key_weights import KeyWeights
from pagemill_server.api.management import make_management_app
from pagemill_server.api.service import Loaded, Service
from pagemill_server.beside import RemoteModel
from pagemill_server.drain import Drain
from pagemill_server.engine.loop import EngineLoop
from pagemill_server.lifecycle import Lifecycle, Phase
from pagemill_server.loading import LoadedModel, download, load
from pagemill_server.metrics import MeteredRunner
from pagemill_server.settings import Settings

logger = logging.getLogger(__name__)

_LOADER = "loading"  # the thread's name
_TICK = 0.1  # seconds between looks at what can't be awaited
_KEEP_ALIVE = 65  # seconds; longer than the idle timeout of common proxies, so that they close first
_OPEN_FILES = 65_536
# Seconds that a thread computes in Python before others have their turn: the event loop waits so long for the engine's thread
# whenever it has written to a socket.
SWITCH = 1e-3
_LAST_WORDS = 5.0  # seconds for error events to leave once the engine has stopped


def run(settings: Settings, files: ModelFiles | None) -> int:
    """Serve until SIGTERM or SIGINT; returns 0. Without `files` the hub is asked for them.

    Raises PagemillError for a failure to start or to go on.
    """
    _log_to_stderr()
    raise_open_files()
    sys.setswitchinterval(SWITCH)
    server = settings.server
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(_listen(server.host, server.port, "--port"))
        management = None
        if server.management_port is not None:
            management = sockets.enter_context(_listen(server.host, server.management_port, "--management-port"))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_with_signals(Life(settings, files), listener, management))
    return 0


def leave(code: int) -> int:
    """The exit code, unless a model is still loading: that thread can't be stopped, and an interpreter that shuts down
    under it may crash or hang, so the process ends here."""
    if any(thread.name == _LOADER for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


class Life:
    """One server from its first request for /health to its last answer."""

    def __init__(self, settings: Settings, files: ModelFiles | None) -> None:
        self._settings = settings
        self._files = files
        self._lifecycle = Lifecycle(files.weights_bytes if files is not None else 0)
        self.service = Service(
            settings.model.served_names,
            self._lifecycle,
            block_size=settings.cache.block_size,
            api_keys=KeyRing(settings.server.api_keys, settings.server.api_key_file),
            startup_timeout=settings.server.startup_timeout,
            stall_timeout=settings.server.stall_timeout,
            log_content=settings.server.log_content,
            weights=dict(settings.scheduler.weights),
        )
        self._key_weights = KeyWeights(self.service.keys, dict(settings.scheduler.weights))
        self._model: LoadedModel | RemoteModel | None = None
        self._stop = asyncio.Event()
        self._drain = Drain(self.service, settings.server)
        self._traces = _traces(settings.server.otlp_traces_endpoint)
        self._uvicorn = http_server(make_app(self.service, self._traces))

    async def live(self, listener: socket.socket, management: socket.socket | None = None) -> None:
        """All of it. Raises PagemillError."""
        answering = asyncio.create_task(self._uvicorn.serve(sockets=[listener]))
        address = listener.getsockname()
        logger.info(
            "listening on http://%s:%d, loading %s",
            _bracketed(address[0]),
            address[1],
            self._files.path if self._files is not None else self._settings.model.model,
        )
        try:
            async with self._managed(management), self._following_keys():
                loaded = await self._load()
                if loaded is not None:
                    await self._serve(loaded)
                    await self._end(loaded)
        finally:
            self._uvicorn.should_exit = True
            await answering
            self.service.close()
            if self._traces is not None:
                await self._traces.close()
            if self._model is not None:
                self._model.close()

    @contextlib.asynccontextmanager
    async def _managed(self, listener: socket.socket | None) -> AsyncIterator[None]:
        """The management port answers from the first moment to the last."""
        if listener is None:
            yield
            return
        server = http_server(make_management_app(self.service, self._settings, self._drain))
        answering = asyncio.create_task(server.serve(sockets=[listener]))
        address = listener.getsockname()
        logger.info("management and its page: http://%s:%d/", _bracketed(address[0]), address[1])
        try:
            yield
        finally:
            server.should_exit = True
            await answering

    @contextlib.asynccontextmanager
    async def _following_keys(self) -> AsyncIterator[None]:
        following = asyncio.create_task(self.service.keys.follow(self._keys_changed))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def _keys_changed(self) -> None:
        keys = self.service.keys
        self.service.metrics.keys.know(key.name for key in keys.keys)
        if self.service.loaded is not None:
            self._key_weights.tell(self.service.loaded.engine)

    def stop(self) -> None:
        """What a signal does: the first begins the stop, a second one skips its waiting. On the event loop's thread."""
        if self._stop.is_set():
            self._drain.hurry()
        self._stop.set()

    async def _load(self) -> Loaded | None:
        """None: told to stop before the model was there."""
        loading: Future[LoadedModel | RemoteModel] = Future()
        loaded = asyncio.Event()

        def load() -> None:
            self._load_into(loading)
            with contextlib.suppress(RuntimeError):  # the loop is closed: told to stop meanwhile
                loop.call_soon_threadsafe(loaded.set)

        loop = asyncio.get_running_loop()
        threading.Thread(target=load, name=_LOADER, daemon=True).start()
        while not loading.done():
            if self._stop.is_set():
                logger.info("told to stop while loading")
                return None
            if (stuck := self._lifecycle.stuck_for()) > self._settings.server.startup_timeout:
                raise PagemillError(
                    FailureReason.LOAD_STALLED,
                    f"loading has not moved for {stuck:.0f} s (phase {self._lifecycle.phase}, {self._lifecycle.percent}%): "
                    "look at the disk or network that holds the model, or raise --startup-timeout",
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(loaded.wait(), _TICK)
        model = self._model = loading.result()
        if isinstance(model, RemoteModel):
            return model.client(self._stepped)
        return model.answering(EngineLoop(model.engine))

    def _stepped(self, tokens: int) -> None:
        self.service.metrics.observe(metric_names.ITERATION_TOKENS, tokens)

    def _load_into(self, future: Future[LoadedModel | RemoteModel]) -> None:
        try:
            measured = partial(MeteredRunner, metrics=self.service.metrics)
            files = self._files or download(self._settings.model.model, self._lifecycle)
            model: LoadedModel | RemoteModel
            if beside.is_wanted(self._settings.model):
                model = beside.load(self._settings, files, self._lifecycle)
            else:
                model = load(self._settings, files, self._lifecycle, measured)
            garbage.settle()
            future.set_result(model)
        except BaseException as error:  # noqa: BLE001  raised where the future is read
            future.set_exception(error)

    async def _serve(self, loaded: Loaded) -> None:
        """Until a signal. Raises PagemillError(EngineFailed) when the engine ends, after its streams have had their error."""
        self._key_weights.tell(loaded.engine)
        self.service.loaded = loaded
        self._lifecycle.enter(Phase.SERVING)
        logger.info("ready: %s, up to %d tokens", ", ".join(self.service.served_names), loaded.context)
        assert self._model is not None
        while not self._stop.is_set():
            if (why := loaded.engine.dead or self._model.trouble()) is not None:
                await self._drain.until_idle(_LAST_WORDS)
                raise _engine_ended(why, self._settings.cache.gpu_memory_utilization)
            await asyncio.sleep(_TICK)

    async def _end(self, loaded: Loaded) -> None:
        await self._drain.finish()
        with contextlib.suppress(TimeoutError):  # a device that never comes back must not keep the process
            await asyncio.wait_for(loaded.engine.stop(), _LAST_WORDS)
        await self._drain.until_idle(_LAST_WORDS)
        logger.info("stopped")


def _engine_ended(why: str, utilization: float) -> PagemillError:
    if (failure := cuda_failures.classify(why, utilization)) is not None:
        return PagemillError(failure.reason, failure.message, failure.suggestion)
    return PagemillError(FailureReason.ENGINE_FAILED, f"the engine ended: {why}")


def _traces(endpoint: str | None) -> Traces | None:
    """Raises PagemillError for what OpenTelemetry's own environment variables say wrong."""
    if endpoint is None:
        return None
    try:
        traces: Traces = importlib.import_module("pagemill_server.api.tracing").RequestTraces(endpoint)
    except (ImportError, ValueError, RuntimeError) as error:
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"traces can't be sent (--otlp-traces-endpoint): {error}"
        ) from error
    return traces


async def _with_signals(life: Life, listener: socket.socket, management: socket.socket | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.stop)
    await life.live(listener, management)


def http_server(app: ASGIApp) -> uvicorn.Server:
    """uvicorn as we run it; it serves the sockets that it is given and leaves signals alone."""
    return _Uvicorn(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=int(_LAST_WORDS),
        )
    )


class _Uvicorn(uvicorn.Server):
    """Signals are `_with_signals`'s: uvicorn would close the port at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A bound socket, before anything slow is done; raises PagemillError (AddressInUse, InvalidConfiguration)."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PagemillError(
                FailureReason.ADDRESS_IN_USE,
                f"port {port} on {host} is in use: stop what listens there, or give another {flag}",
            ) from None
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"can't listen on {host} port {port}: {error.strerror or error}"
        ) from None


def raise_open_files() -> None:
    """A connection is a file, and shells and service managers allow 1024 of them: some hundred clients that say nothing would
    lock out probes. Taken is what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormat())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
