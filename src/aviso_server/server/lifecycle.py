"""The life of a server: start, limits of the system, signals, and the file that says where it listens."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec
import pyarrow
import uvicorn
import uvloop

from aviso_server import __version__, diagnostics
from aviso_server.config import shown
from aviso_server.config.checks import mask_credentials
from aviso_server.config.settings import Limits, Settings
from aviso_server.counters import RequestTally
from aviso_server.diagnostics.otlp import Traces, make_exporter
from aviso_server.errors import LogError
from aviso_server.http.app import App, Service
from aviso_server.http.connection import HttpConnection, limited_connection
from aviso_server.http.limits import RequestLimits, resident_bytes
from aviso_server.http.metrics import MetricsApp
from aviso_server.http.routes import ROUTES
from aviso_server.log.base import Log
from aviso_server.server.watchdog import Watchdog
from aviso_server.server.wiring import Archiving, make_log, make_service

__all__ = ["clear_ready_file", "run"]

logger = logging.getLogger(__name__)


def clear_ready_file(path: Path) -> None:
    """Remove the file of an earlier run; OSError if none can be written there."""
    path.unlink(missing_ok=True)
    draft = _draft(path)
    draft.write_bytes(b"")
    draft.unlink()


def write_ready_file(path: Path, host: str, port: int) -> None:
    """Write where the server listens, all of it at once."""
    draft = _draft(path)
    draft.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}))
    draft.rename(path)


def remove_ready_file(path: Path) -> None:
    """Remove the file, unless another process has replaced it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_bytes())["pid"] == os.getpid():
            path.unlink()


def _draft(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to the address."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # accepted sockets inherit it: a peer that vanished is noticed even when nothing is sent
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def cannot_listen(section: str, host: str, port: int, error: OSError) -> str:
    """Say why the host and port of this section cannot be used, and what to do about it."""
    where = f"cannot listen on {host}:{port} ({section}.host and {section}.port)"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another process listens there; stop it, or set {section}.port to a free port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where}: this user may not; set {section}.port to 1024 or more"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: {host} is not an address of this machine; set {section}.host to one, or to 0.0.0.0 for all"
    return f"{where}: {error.strerror or error}"


T = TypeVar("T")

_UVICORN: dict[str, Any] = {
    "loop": "none",
    "ws": "none",
    "lifespan": "off",
    "access_log": False,
    "log_config": None,
    "server_header": False,
    "proxy_headers": False,
}
_GRACE = 30  # seconds for requests in flight at shutdown
_PATIENCE = 5  # seconds of these for clients to take the rest of an answer that has begun
_BACKLOG = 4096
_ARCHIVE_DELAY = 1.0  # seconds: the first requests have the machine to themselves
_OWN_FILES = 64  # descriptors for the log, its readers, pages and refusals
_MAX_CALLS = 1500  # calls: JSON of 1,024 levels, which no decoder refuses, is looked at before it is decoded
_TRIM_SECONDS = 5.0
_LARGE = 1024 * 1024
_M_TRIM_THRESHOLD = -1  # as malloc.h numbers them
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_ARENAS = 2  # by default there are as many as threads, each with holes of its own
_SWITCH_INTERVAL = 0.00005  # seconds: how long one thread may keep another waiting, which a commit does several times


def run(settings: Settings, ready: Path | None = None) -> int:
    """Serve until told to stop; return the exit code of the process."""
    try:
        diagnostics.configure(settings)
    except ImportError:
        return _failed("startup.otlp.failed", diagnostics.NOT_INSTALLED)
    _log_configuration(settings)
    settings = _within_file_limit(settings)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    sys.setrecursionlimit(_MAX_CALLS)
    _keep_large_allocations_apart()
    host, port = settings.application.host, settings.application.port
    try:
        listening = bind(host, port)
    except OSError as error:
        return _failed("startup.server.failed", cannot_listen("application", host, port, error))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, listening, ready))
    finally:
        diagnostics.finish()


async def _serve(settings: Settings, listening: socket.socket, ready: Path | None) -> int:
    archiving = Archiving(settings, *listening.getsockname()[:2]) if settings.archive.enabled else None
    log = make_log(settings, None if archiving is None else archiving.lake.watermark)
    try:
        failure = await _unless_stopped(_open(log, archiving))
    except asyncio.CancelledError:
        listening.close()
        await log.close()
        sys.stderr.write("aviso-server: stopped before it was listening\n")
        logger.info("stopped while starting", extra={"event": "startup.server.stopped"})
        return 0
    if failure is not None:
        listening.close()
        return failure
    otlp = settings.logging.otlp
    traces = Traces(make_exporter(otlp, "traces"), settings.deployment) if otlp.traces else None
    service = make_service(settings, log, archiving=archiving, traces=traces)
    try:
        async with AsyncExitStack() as beside:
            if settings.metrics.enabled:
                host, port = settings.metrics.host, settings.metrics.port or 0
                try:
                    scraped = bind(host, port)
                except OSError as error:
                    listening.close()
                    return _failed("startup.metrics.failed", cannot_listen("metrics", host, port, error))
                await beside.enter_async_context(_metrics_served(service, scraped))
            tidying = asyncio.create_task(_trim_memory(), name="memory")
            beside.callback(tidying.cancel)
            server = _MainServer(service, listening, ready)
            service.hub.start()
            watchdog = Watchdog(service.loop_lag)
            watchdog.start()
            beside.callback(watchdog.stop)
            look_for_cycles_rarely()
            await server.serve(sockets=[listening])
    finally:
        if service.subscriptions is not None:
            await service.subscriptions.stop()
        await service.hub.stop()
        await service.close()
        await log.close()
        if traces is not None:
            await asyncio.to_thread(traces.close)
    logger.info("server stopped", extra={"event": "startup.server.stopped"})
    return 0


async def _open(log: Log, archiving: Archiving | None) -> int | None:
    """Open the log and the archive; return the exit code if that fails."""
    try:
        await log.open()
    except LogError as error:
        return _failed("startup.backend.failed", str(error))
    if archiving is not None:
        try:
            await archiving.open(log)
        except LogError as error:
            await log.close()
            return _failed("startup.archive.failed", str(error))
    return None


async def _unless_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Await work that SIGTERM or SIGINT ends with CancelledError."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        task.uncancel()
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


class _MainServer(uvicorn.Server):
    """uvicorn that ends open streams in order on shutdown."""

    def __init__(self, service: Service, listening: socket.socket, ready: Path | None) -> None:
        super().__init__(
            uvicorn.Config(
                App(service, ROUTES),
                http=limited_connection(service.limits, service.tally),
                **_UVICORN,
                timeout_keep_alive=service.settings.limits.idle_timeout_seconds,
                timeout_graceful_shutdown=_GRACE,
                backlog=_BACKLOG,
            )
        )
        self._service = service
        self._listening = listening
        self._ready_file = ready
        self._loop = asyncio.get_running_loop()
        service.connections = self.server_state.connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listening.getsockname()[:2]
        _warn(self._service.settings)
        logger.info(
            f"aviso-server {__version__} listens on http://{host}:{port}",
            extra={"event": "startup.server.started", "backend": self._service.log.kind},
        )
        if self._service.archive is not None:
            self._service.archive.start(_ARCHIVE_DELAY)
        if self._service.lateness is not None:
            self._service.lateness.start()
        if self._service.subscriptions is not None:
            await self._service.subscriptions.start()
        if self._ready_file is not None:
            write_ready_file(self._ready_file, host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ready_file is not None:
            remove_ready_file(self._ready_file)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Shut down on SIGTERM and SIGINT; unlike uvicorn, do not raise the signal again afterwards."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End every stream, then let the requests in flight finish; a second SIGINT does not wait."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._leave, signal.Signals(sig).name)

    def _leave(self, name: str) -> None:
        logger.info("received %s", name, extra={"event": f"startup.signal.{name.lower()}.received"})
        streams = len(self._service.hub.open_streams)
        logger.info("shutting down", extra={"event": "startup.shutdown.received", "open_streams": streams})
        for connection in self._connections():
            if connection.behind:
                connection.shutdown()  # else the end of a stream would begin the request behind it
        self._service.hub.close_streams("server_shutdown")
        if (subscriptions := self._service.subscriptions) is not None:
            subscriptions.puller.end_waits(subscriptions.all)
        self._loop.call_later(_PATIENCE, self._hang_up)

    def _hang_up(self) -> None:
        """Disconnect clients that do not read: what they have not taken is still in the log."""
        for connection in self._connections():
            if connection.answer_begun:
                connection.transport.abort()

    def _connections(self) -> list[HttpConnection]:
        return [each for each in self.server_state.connections if isinstance(each, HttpConnection)]


class _MetricsServer(uvicorn.Server):
    """uvicorn that leaves signals to the main server."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def _metrics_served(service: Service, listening: socket.socket) -> AsyncIterator[None]:
    """Answer scrapes on this socket until the context is left."""
    server = _MetricsServer(
        uvicorn.Config(
            MetricsApp(service),
            http=limited_connection(RequestLimits(service.settings.limits), RequestTally()),
            **_UVICORN,
            limit_concurrency=64,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="metrics")
    try:
        await server.listens.wait()
        yield
    finally:
        server.should_exit = True
        await serving


def _keep_large_allocations_apart() -> None:
    """Have the C library return large allocations to the system as soon as they are free, and give Arrow its memory.

    Reading history takes many megabytes for a moment. By default they end up among the small allocations, with holes
    between them, and a process that uses no more than before seems to grow. Arrow's own allocator keeps what each
    thread has once used: half of the process, after a minute of replays.
    """
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, _LARGE)
        adjust(_M_TRIM_THRESHOLD, 8 * _LARGE)
        adjust(_M_ARENA_MAX, _ARENAS)


def look_for_cycles_rarely() -> None:
    """Leave out what lives as long as the process, and wait for more than 700 objects, the default.

    That costs a publish eight per cent, and a request of 80,000 small arrays fifty milliseconds.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


async def _trim_memory() -> None:
    """Return free memory to the system whenever the process has grown."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    least = resident_bytes()
    while trim is not None:
        await asyncio.sleep(_TRIM_SECONDS)
        if resident_bytes() > least + 8 * _LARGE:
            await asyncio.to_thread(trim, 0)
            least = resident_bytes()


def _log_configuration(settings: Settings) -> None:
    names = [event_type.name for event_type in settings.event_types]
    logger.info(
        "configuration loaded: %s backend, %d event types",
        settings.notification_backend.kind,
        len(names),
        extra={"event": "startup.configuration.loaded", "event_types": names, "strict": settings.strict},
    )
    logger.info(
        "configuration in full", extra={"event": "startup.configuration.dumped", "configuration": shown(settings)}
    )
    if names and settings.notification_schema_strict is False:
        logger.warning(
            "event types that are not configured are accepted: notification_schema_strict is false",
            extra={"event": "configuration.schema_strict.explicit_disabled"},
        )


def _warn(settings: Settings) -> None:
    """Log the warnings about the configuration; on stderr too, unless a person sees the log already."""
    seen = sys.stdout.isatty() and sys.stderr.isatty()
    for warning in settings.warnings:
        logger.warning(warning, extra={"event": "startup.configuration.warning"})
        if not seen:
            sys.stderr.write(f"warning: {warning}\n")


def _within_file_limit(settings: Settings) -> Settings:
    """Use all file descriptors that the system allows, and take on no more connections than there are.

    Every client is one. Without any left the system would hang up on clients, and nobody would know why.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = settings.limits.max_connections
    room = max(1, hard - _OWN_FILES)
    if hard == resource.RLIM_INFINITY or most <= room:
        return settings
    # a default that misses by no more than our own files is nothing that anybody has to mend
    if not most == Limits().max_connections <= hard:
        logger.warning(
            "no more than %d connections are possible, limits.max_connections is %d: the system allows %d open files; "
            "raise that to %d ('ulimit -n', or LimitNOFILE of systemd), or lower limits.max_connections",
            *(room, most, hard, most + _OWN_FILES),
            extra={"event": "startup.configuration.warning"},
        )
    limits = msgspec.structs.replace(settings.limits, max_connections=room)
    return msgspec.structs.replace(settings, limits=limits)


def _failed(event: str, message: str) -> int:
    message = mask_credentials(message)  # the address of a broker may hold a password
    logger.error(message, extra={"event": event})
    sys.stderr.write(f"aviso-server: {message}\n")
    return 1
