"""The process: socket, log, application, signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Coroutine, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec
import uvicorn
import uvloop

from aviso_server import __version__, diagnostics
from aviso_server.config import shown
from aviso_server.config.settings import Limits, Settings
from aviso_server.config.urls import mask_credentials
from aviso_server.errors import LogError
from aviso_server.http import ready_file
from aviso_server.http.app import App
from aviso_server.http.archiving import Archiving
from aviso_server.http.connection.express import express_connection
from aviso_server.http.connection.slow_clients import LimitedConnection, limited_connection
from aviso_server.http.express import ExpressPublisher
from aviso_server.http.limits.memory import give_back, keep_large_pieces_apart
from aviso_server.http.listening import bind, cannot_listen
from aviso_server.http.metrics.server import metrics_served
from aviso_server.http.service import Service
from aviso_server.http.traces import start_traces
from aviso_server.log.base import KeyPolicy, Log
from aviso_server.log.memory import MemoryLog
from aviso_server.log.retention import Archived
from aviso_server.log.sqlite.log import SqliteLog

__all__ = ["make_log", "run"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GRACE = 30  # seconds for requests in flight at shutdown
_PATIENCE = 5  # seconds of these for clients to take the rest of an answer that has begun
_BACKLOG = 4096
_ARCHIVE_DELAY = 1.0  # seconds: the first requests have the machine to themselves
_OWN_FILES = 64  # descriptors for the log, its readers, pages and refusals
_SWITCH_INTERVAL = 0.00005  # seconds: how long one thread may keep another waiting, which a commit does several times


def make_log(settings: Settings, archived: Archived | None = None) -> Log:
    """The log that the settings ask for, not opened yet; `archived` tells how much of it the archive holds."""
    backend = settings.notification_backend
    keys = KeyPolicy(settings.idempotency.retention, settings.idempotency.max_keys)
    if backend.kind == "in_memory":
        return MemoryLog(backend.in_memory.max_history_per_topic, backend.in_memory.max_topics, keys=keys)
    if backend.kind == "jetstream":
        # The broker's client is imported late: most servers do without it.
        from aviso_server.log.jetstream.log import JetStreamLog
        from aviso_server.log.jetstream.options import BrokerOptions

        given = msgspec.structs.asdict(backend.jetstream)
        options = BrokerOptions(**msgspec.structs.asdict(given.pop("tls")), **given)
        key_orders = {each.base: each.key_order for each in settings.event_types}
        return JetStreamLog(options, settings.policies, key_orders, keys=keys, archived=archived)
    return SqliteLog(backend.sqlite.path, settings.policies, keys=keys, archived=archived)


def run(settings: Settings, ready: Path | None = None) -> int:
    """Serve until told to stop; the exit code of the process."""
    try:
        diagnostics.configure(settings)
    except ImportError:
        return _failed("startup.otlp.failed", diagnostics.NOT_INSTALLED)
    _log_configuration(settings)
    settings = _within_file_limit(settings)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    keep_large_pieces_apart()
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
        sys.stderr.write("aviso-server: stopped before it listened\n")
        logger.info("stopped while starting", extra={"event": "startup.server.stopped"})
        return 0
    if failure is not None:
        listening.close()
        return failure
    service = Service(settings, log, archiving=archiving)
    if settings.logging.otlp.enabled:
        traces = start_traces(settings.logging.otlp, settings.deployment)
        service.trace(traces)
    try:
        async with AsyncExitStack() as beside:
            if settings.metrics.enabled:
                host, port = settings.metrics.host, settings.metrics.port or 0
                try:
                    scraped = bind(host, port)
                except OSError as error:
                    listening.close()
                    return _failed("startup.metrics.failed", cannot_listen("metrics", host, port, error))
                await beside.enter_async_context(metrics_served(service, scraped))
            tidying = asyncio.create_task(give_back(), name="memory")
            beside.callback(tidying.cancel)
            server = _Server(service, listening, ready)
            service.hub.start()
            gc.freeze()  # what lives as long as the process need not be looked at again
            gc.set_threshold(10_000, 10, 10)  # looking for cycles every 700 objects costs a publish eight per cent
            await server.serve(sockets=[listening])
    finally:
        await service.hub.stop()
        await service.close()
        await log.close()
        if service.traces is not None:
            await asyncio.to_thread(service.traces.close)
    logger.info("server stopped", extra={"event": "startup.server.stopped"})
    return 0


async def _open(log: Log, archiving: Archiving | None) -> int | None:
    """Open the log and the archive; the exit code if that fails."""
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
    """The result of work that SIGTERM or SIGINT ends with CancelledError."""
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


class _Server(uvicorn.Server):
    """uvicorn, told what to do with open streams when it has to leave."""

    def __init__(self, service: Service, listening: socket.socket, ready: Path | None) -> None:
        super().__init__(
            uvicorn.Config(
                App(service),
                http=_connection(service),
                loop="none",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=service.settings.limits.idle_timeout_seconds,
                timeout_graceful_shutdown=_GRACE,
                backlog=_BACKLOG,
            )
        )
        self._service = service
        self._listening = listening
        self._ready_file = ready
        self._loop = asyncio.get_running_loop()
        service.connections = lambda: len(self.server_state.connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listening.getsockname()[:2]
        logger.info(
            f"aviso-server {__version__} listens on http://{host}:{port}",
            extra={"event": "startup.server.started", "backend": self._service.log.kind},
        )
        if self._service.archive is not None:
            self._service.archive.start(_ARCHIVE_DELAY)
        if self._service.lateness is not None:
            self._service.lateness.start()
        if self._ready_file is not None:
            ready_file.write(self._ready_file, host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ready_file is not None:
            ready_file.remove(self._ready_file)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave in order on SIGTERM and SIGINT; unlike uvicorn, an ordinary stop is not reported as death by signal."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say goodbye to every stream, then let the requests in flight finish; a second SIGINT does not wait."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._leave, signal.Signals(sig).name)

    def _leave(self, name: str) -> None:
        logger.info("received %s", name, extra={"event": f"startup.signal.{name.lower()}.received"})
        streams = len(self._service.hub.open_streams)
        logger.info("shutting down", extra={"event": "startup.shutdown.received", "open_streams": streams})
        self._service.hub.close_streams("server_shutdown")
        self._loop.call_later(_PATIENCE, self._hang_up)

    def _hang_up(self) -> None:
        """Let go of clients that do not read: everything they have not taken is still in the log."""
        for connection in list(self.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            answers = not getattr(connection, "answer_due", False)
            if answers and cycle is not None and cycle.response_started and connection.transport is not None:
                connection.transport.abort()


def _connection(service: Service) -> type[LimitedConnection]:
    if ExpressPublisher.serves(service):
        return express_connection(service.limits, service.tally, ExpressPublisher(service))
    return limited_connection(service.limits, service.tally)


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
    for warning in settings.warnings:
        logger.warning(warning, extra={"event": "startup.configuration.warning"})
    if names and settings.notification_schema_strict is False:
        logger.warning(
            "event types that are not configured are accepted: notification_schema_strict is false",
            extra={"event": "configuration.schema_strict.explicit_disabled"},
        )


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
    level = logging.INFO if most == Limits().max_connections <= hard else logging.WARNING
    logger.log(
        level,
        "limits.max_connections is %d, but the system allows %d open files: %d connections", most, hard, room,
        extra={"event": "startup.configuration.warning"},
    )  # fmt: skip
    limits = msgspec.structs.replace(settings.limits, max_connections=room)
    return msgspec.structs.replace(settings, limits=limits)


def _failed(event: str, message: str) -> int:
    message = mask_credentials(message)  # the address of a broker may hold a password
    logger.error(message, extra={"event": event})
    sys.stderr.write(f"aviso-server: {message}\n")
    return 1
