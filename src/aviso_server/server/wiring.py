"""From settings to objects: the log, the archive and the service."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from aviso_server.archive.journal import Journal
from aviso_server.archive.lake import Known, Lake, align
from aviso_server.archive.reports import LastAudit, Quarantined
from aviso_server.archive.supervisor import ARCHIVE_TOKEN, Supervisor
from aviso_server.config.settings import Settings
from aviso_server.counters import Operations
from aviso_server.delivery.hub import Hub, Pace
from aviso_server.diagnostics.otlp import Traces
from aviso_server.errors import LogError, RequestError
from aviso_server.http.app import Service
from aviso_server.http.auth import ArchiveJobToken, Gate, User
from aviso_server.http.ecpds import EcpdsPlugin
from aviso_server.http.limits import Browsers, RequestLimits
from aviso_server.http.response import HttpError
from aviso_server.http.routes.insights import Insights
from aviso_server.lateness.watch import ModelFiles, StateFile, Watch
from aviso_server.log.base import Archived, KeyPolicy, Log, Shared
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.event_type import Catalogue
from aviso_server.model.fields import SpatialField
from aviso_server.model.filter import Filter
from aviso_server.model.lateness import LATENESS_FOLDER
from aviso_server.model.quarantine import QUARANTINE_FOLDER
from aviso_server.model.times import SECOND
from aviso_server.store import Coverage, Store
from aviso_server.subscriptions.push import RetryPolicy
from aviso_server.subscriptions.registry import Guard, Subscriptions
from aviso_server.subscriptions.registry import Limits as SubscriptionLimits
from aviso_server.subscriptions.signatures import KEY_BYTES, Vault, read_or_make_key
from aviso_server.subscriptions.sinks import SinkClient, SinkRules
from aviso_server.subscriptions.subscription import ANYBODY, Subscription

__all__ = ["Archiving", "make_log", "make_service"]

logger = logging.getLogger(__name__)

_MIN_STALL = 60  # seconds


def make_log(settings: Settings, archived: Archived | None = None) -> Log:
    """Make the log, not opened yet; `archived` tells how much of it the archive holds."""
    backend = settings.notification_backend
    keys = KeyPolicy(settings.idempotency.retention, settings.idempotency.max_keys)
    if backend.kind == "in_memory":
        return MemoryLog(backend.in_memory.max_history_per_topic, backend.in_memory.max_topics, keys=keys)
    if backend.kind == "jetstream":
        # The broker's client is imported late: most servers do without it.
        from aviso_server.log.jetstream.client import BrokerOptions
        from aviso_server.log.jetstream.log import JetStreamLog

        given = msgspec.structs.asdict(backend.jetstream)
        options = BrokerOptions(**msgspec.structs.asdict(given.pop("tls")), **given)
        key_orders = {each.base: each.key_order for each in settings.event_types}
        return JetStreamLog(options, settings.policies, key_orders, keys=keys, archived=archived)
    return SqliteLog(backend.sqlite.path, settings.policies, keys=keys, archived=archived)


def make_service(
    settings: Settings,
    log: Log,
    clock: Callable[[], int] = time.time_ns,
    archiving: Archiving | None = None,
    traces: Traces | None = None,
) -> Service:
    """Put the service of a server together; nothing is started yet."""
    watch, auth, streams = settings.watch_endpoint, settings.auth, settings.stream_auth
    catalogue = Catalogue({each.name: each for each in settings.event_types}, settings.strict)
    operations = Operations()
    archive = None if archiving is None else archiving.lake
    store = Store(log, archive, operations)
    hub = Hub(
        store,
        settings.application.base_url,
        Pace(
            heartbeat_interval=watch.sse_heartbeat_interval_sec,
            max_duration=watch.connection_max_duration_sec,
            batch_size=watch.replay_batch_size,
            batch_delay=watch.replay_batch_delay_ms / 1000,
            buffer_bytes=watch.buffer_bytes,
            stall=max(watch.connection_max_duration_sec, _MIN_STALL),
        ),
        clock,
        catalogue.event_types.keys(),
        {each.name: settings.application.polygon_output for each in settings.event_types if each.shaped},
    )
    if traces is not None:
        hub.on_passed = traces.passed_on
    gate = Gate(auth, streams, catalogue) if auth.enabled else None
    has_ecpds = auth.enabled and any("ecpds" in stream.plugins for stream in streams.values())
    ecpds = EcpdsPlugin(settings.ecpds, streams) if has_ecpds else None
    return Service(
        settings=settings,
        catalogue=catalogue,
        log=log,
        store=store,
        hub=hub,
        clock=clock,
        operations=operations,
        limits=RequestLimits(settings.limits),
        browsers=Browsers(settings),
        quarantined=Quarantined(settings.archive.work_path.absolute() / QUARANTINE_FOLDER),
        insights=Insights(settings),
        gate=gate,
        ecpds=ecpds,
        archive=archive,
        archive_job=None if archiving is None else archiving.token,
        lateness=_lateness_watch(settings, store, clock),
        subscriptions=_subscriptions(settings, hub, catalogue, _guard(gate, ecpds, catalogue), clock),
        traces=traces,
    )


def _subscriptions(
    settings: Settings, hub: Hub, catalogue: Catalogue, guard: Guard, clock: Callable[[], int]
) -> Subscriptions | None:
    """Make the subscriptions, not started yet; LogError if their key cannot be read."""
    given = settings.subscriptions
    if not given.enabled:
        return None
    return Subscriptions(
        hub,
        catalogue,
        SinkClient(SinkRules(given.allow_sinks), given.push_timeout_ms / 1000, given.ca_file),
        _vault(settings),
        SubscriptionLimits(
            given.max_per_user,
            given.max_total,
            given.max_dead_letters,
            given.max_in_flight,
            given.notifications_per_second,
            given.bytes_per_second,
            RetryPolicy(given.retry_delay_ms / 1000, given.max_retry_delay_ms / 1000),
        ),
        settings.application.base_url,
        guard,
        clock,
    )


def _vault(settings: Settings) -> Vault | None:
    """Return what secrets are made from: a file that is named, or one beside the log.

    None for a broker's log without a file: several servers have to make the same secrets.
    """
    backend, file = settings.notification_backend, settings.subscriptions.key_file
    if file is not None:
        return Vault(read_or_make_key(file))
    if backend.kind == "sqlite":
        return Vault(read_or_make_key(backend.sqlite.path / "subscriptions.key"))
    return Vault(secrets.token_bytes(KEY_BYTES)) if backend.kind == "in_memory" else None


def _guard(gate: Gate | None, ecpds: EcpdsPlugin | None, catalogue: Catalogue) -> Guard:
    """Return the check, before every delivery, that the owner of a subscription may read what it wants."""

    async def guard(subscription: Subscription, wanted: Filter) -> str | None:
        if gate is None:
            return None
        owner = subscription.owner
        user = User(owner.name, owner.realm, owner.roles, owner.attributes, _FOR_EVER, owner.admin)
        try:
            reader = None if owner.key == ANYBODY.key else user
            gate.rules.check(catalogue.find(wanted.event_type), reader, "read")
            if ecpds is not None:
                await ecpds.check(wanted, user, subscription.id)
        except (HttpError, RequestError) as error:
            return error.message
        return None

    return guard


_FOR_EVER = 2**33  # seconds since 1970; credentials expire, but a subscription does not


_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # addresses to listen on, not to connect to


class Archiving:
    """The archive: a lake and the credentials of the job that fills it."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        archive = settings.archive
        self.token = ArchiveJobToken()
        self._path = archive.path
        work, host = archive.work_path.absolute(), _EVERYWHERE.get(host, host)
        ready_file = work / "flight.json"
        command = [
            *("-m", "aviso_server.spark.process"),
            *("--url", archive.url or (f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")),
            *("--path", archive.path),
            *("--work", str(work)),
            *("--ready-file", str(ready_file)),
            *("--interval", str(archive.interval / SECOND)),
            *("--spark", archive.spark),
        ]
        if settings.watched:
            command += ["--lateness", msgspec.json.encode(settings.watched).decode()]
            command += ["--lateness-interval", str(settings.lateness.interval / SECOND)]
        if settings.insight.enabled:
            command += ["--insight-interval", str(settings.insight.interval / SECOND)]
        shapes = {
            each.name: [name for name, field in each.fields.items() if isinstance(field, SpatialField)]
            for each in settings.event_types
        }

        def shapes_of(event_type: str) -> Sequence[str]:
            return shapes.get(event_type, ())

        self.lake = Lake(
            Supervisor(command, ready_file, {ARCHIVE_TOKEN: self.token.text}),
            Known(archive.path, work / "archived.json"),
            Journal(work / "removals.jsonl"),
            archive.max_replays,
            shapes_of,
            LastAudit(archive.path, work),
        )

    async def open(self, log: Log) -> None:
        """Read what is archived and align the log's numbering with it; LogError if that fails."""
        if isinstance(log, Shared):
            self.lake.supervisor.elected = False  # until the lease says so
            self.lake.lease = log.lease("archive", self.lake.supervisor.elect)
        await self.lake.open()
        await align(log, self.lake.known.streams, self._path)

        async def align_again(archived: Mapping[str, Coverage]) -> None:
            try:
                await align(log, archived, self._path)
            except LogError as error:
                logger.error("%s", error, extra={"event": "archive.numbering.refused"})  # says it all

        self.lake.on_start = align_again


def _lateness_watch(settings: Settings, store: Store, clock: Callable[[], int]) -> Watch | None:
    """Make the lateness watch, not started yet; None if no event type is watched."""
    if not settings.watched:
        return None
    event_types = {each.name: each for each in settings.event_types}
    return Watch(
        [(each, event_types[each.event_type]) for each in settings.watched],
        store,
        ModelFiles(_lateness_folder(settings), settings.watched),
        StateFile(settings.lateness.path),
        clock,
    )


def _lateness_folder(settings: Settings) -> Path:
    """Return where learned models lie; of a remote archive there are copies on this machine."""
    archive = settings.archive
    parts = urlsplit(archive.path)
    if parts.scheme == "file":
        return Path(unquote(parts.path)) / LATENESS_FOLDER
    return archive.work_path / "lateness" if parts.scheme else Path(archive.path) / LATENESS_FOLDER
