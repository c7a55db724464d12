"""The settings of a server: every key with its type, limits and default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from aviso_server.log.base import StoragePolicy
from aviso_server.model.event_type import EventType
from aviso_server.model.lateness import Watched

__all__ = [
    "Application",
    "Archive",
    "Auth",
    "Backend",
    "Deployment",
    "Duration",
    "Ecpds",
    "LatenessEntry",
    "Limits",
    "Metrics",
    "Otlp",
    "Roles",
    "Secret",
    "Settings",
    "Size",
    "StoragePolicyEntry",
    "StreamAuth",
    "Subscriptions",
    "Text",
    "Tls",
    "Whole",
]


class Whole(msgspec.Struct, frozen=True):
    """A whole number within limits, both included."""

    minimum: int = 0
    maximum: int = 2**63 - 1

    @property
    def accepted(self) -> str:
        """The limits in words."""
        if self.maximum == 2**63 - 1:
            return "a whole number" if self.minimum < 0 else f"a whole number, {self.minimum} or more"
        return f"a whole number from {self.minimum} to {self.maximum}"


class Duration(msgspec.Struct, frozen=True):
    """A length of time above zero with its unit, kept as nanoseconds."""


class Size(msgspec.Struct, frozen=True):
    """A size above zero with its unit, kept as bytes."""


class Text(msgspec.Struct, frozen=True):
    """Text, perhaps neither blank nor with blanks around it."""

    blank: bool = True
    padded: bool = True


class Secret(str):
    """Text that never shows in a log or a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[REDACTED]'"


Count = Annotated[int, Whole()]
Positive = Annotated[int, Whole(minimum=1)]
Signed = Annotated[int, Whole(minimum=-(2**63))]
Port = Annotated[int, Whole(maximum=65535)]
Span = Annotated[int, Duration()]
Filled = Annotated[str, Text(blank=False)]
Clean = Annotated[str, Text(blank=False, padded=False)]
Roles = Mapping[str, tuple[str, ...]]


class Homepage(msgspec.Struct, frozen=True):
    """The links of the home page."""

    client_documentation_url: str = "https://sites.ecmwf.int/docs/aviso-client/main/"
    client_repository_url: str = "https://github.com/ecmwf/aviso-client"
    server_documentation_url: str = "https://sites.ecmwf.int/docs/aviso-server/main/"
    server_repository_url: str = "https://github.com/ecmwf/aviso-server"


class Application(msgspec.Struct, frozen=True):
    """The address of the server, and the name it gives itself in events."""

    host: Filled = "127.0.0.1"
    port: Port = 8000
    base_url: Filled = "http://localhost"
    allowed_hosts: tuple[str, ...] = ()
    static_files_path: Path = Path("/app/static")
    polygon_output: Literal["array", "text"] = "array"
    homepage: Homepage = Homepage()


class Otlp(msgspec.Struct, frozen=True):
    """Export of log records, and of traces, to a collector."""

    enabled: bool = False
    endpoint: str | None = None
    protocol: Literal["grpc", "http"] = "grpc"
    traces: bool = False


class Logging(msgspec.Struct, frozen=True):
    """Log records: their level, their form, and their export."""

    level: str = "info"
    format: str | None = None
    otlp: Otlp = Otlp()


class Sqlite(msgspec.Struct, frozen=True):
    """The durable log on this machine's disk."""

    path: Path = Path("data/log")


class InMemory(msgspec.Struct, frozen=True):
    """The log that forgets everything at a restart."""

    max_history_per_topic: Count = 1
    max_topics: Positive = 10_000
    enable_metrics: bool = False


class Tls(msgspec.Struct, frozen=True):
    """Files for an encrypted connection."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


class JetStream(msgspec.Struct, frozen=True):
    """The log on a NATS broker."""

    nats_url: Filled = "nats://localhost:4222"
    token: Secret | None = None
    credentials_file: Path | None = None
    tls: Tls = Tls()
    timeout_seconds: Positive = 30
    retry_attempts: Positive = 3
    max_messages: Signed | None = None
    max_bytes: Signed | None = None
    retention_time: Span | None = None
    storage_type: Literal["file", "memory"] = "file"
    replicas: Count | None = None
    retention_policy: Literal["limits", "interest"] = "limits"
    discard_policy: Literal["old", "new"] = "old"
    max_reconnect_attempts: Count | None = None
    reconnect_delay_ms: Positive = 2000
    publish_retry_attempts: Positive = 5
    publish_retry_base_delay_ms: Positive = 150


class Backend(msgspec.Struct, frozen=True):
    """The log: its kind, and the settings of each kind."""

    kind: Literal["sqlite", "in_memory", "jetstream"] = "sqlite"
    sqlite: Sqlite = Sqlite()
    in_memory: InMemory = InMemory()
    jetstream: JetStream = JetStream()


class WatchEndpoint(msgspec.Struct, frozen=True):
    """Streams to watchers: heartbeats, duration, batches and buffer."""

    sse_heartbeat_interval_sec: Positive = 10
    connection_max_duration_sec: Count = 3600
    replay_batch_size: Positive = 100
    max_historical_notifications: Positive | None = None
    replay_batch_delay_ms: Count = 0
    concurrent_notification_processing: Count = 15
    buffer_bytes: Positive = 1_048_576


class Limits(msgspec.Struct, frozen=True):
    """The limits of one server."""

    max_connections: Positive = 20_000
    max_body_bytes: Positive = 262_144
    max_batch_bytes: Positive = 8_388_608
    max_batch_items: Positive = 10_000
    max_identifier_bytes: Positive = 262_144
    max_polygon_vertices: Annotated[int, Whole(minimum=4)] = 10_000
    max_connections_per_client: Positive | None = None
    requests_per_second: Positive | None = None
    request_burst: Positive | None = None
    trusted_proxies: tuple[str, ...] = ()
    header_timeout_seconds: Positive = 20
    body_timeout_seconds: Positive = 60
    idle_timeout_seconds: Positive = 120
    memory_watermark_bytes: Positive | None = None


class Idempotency(msgspec.Struct, frozen=True):
    """The memory for idempotency keys."""

    retention: Span = 604_800_000_000_000
    max_keys: Positive = 10_000_000


class Auth(msgspec.Struct, frozen=True):
    """Authentication, and the roles of administrators."""

    enabled: bool = False
    mode: Literal["direct", "trusted_proxy"] = "direct"
    auth_o_tron_url: str = ""
    jwt_secret: Secret = Secret("")
    public_key_file: Path | None = None
    jwks_url: str = ""
    algorithms: tuple[str, ...] = ()
    audience: str = ""
    issuer: str = ""
    verify_not_before: bool = False
    admin_roles: Roles = {}
    timeout_ms: Count = 5000


class Metrics(msgspec.Struct, frozen=True):
    """The Prometheus endpoint on a port of its own."""

    enabled: bool = False
    host: Filled = "127.0.0.1"
    port: Port | None = None


class Ecpds(msgspec.Struct, frozen=True):
    """Destination checks against ECPDS; the rules of its values hold once a stream uses the plugin."""

    username: str | None = None
    password: Secret | None = None
    match_key: str | None = None
    servers: tuple[str, ...] = ()
    target_field: str = "name"
    cache_ttl_seconds: Count = 300
    max_entries: Count = 10_000
    request_timeout_seconds: Count = 30
    connect_timeout_seconds: Count = 5
    partial_outage_policy: Literal["strict", "any_success"] = "strict"


class Archive(msgspec.Struct, frozen=True):
    """History beyond the log, kept by Spark."""

    enabled: bool = False
    path: Clean = "data/archive"
    interval: Span = 10_000_000_000
    spark: Clean = "local"
    url: Clean | None = None  # where workers reach this server
    work_path: Path = Path("data/pipeline")
    max_replays: Positive = 4


class Lateness(msgspec.Struct, frozen=True):
    """Alarms for what is expected and has not arrived; event types opt in."""

    interval: Span = 3_600_000_000_000
    path: Path = Path("data/lateness")


class Insight(msgspec.Struct, frozen=True):
    """Tables that say what was published, made from the archive."""

    enabled: bool = True
    interval: Span = 300_000_000_000


class Subscriptions(msgspec.Struct, frozen=True):
    """Named filters with a cursor, pushed to a sink or pulled by workers."""

    enabled: bool = True
    allow_sinks: tuple[str, ...] = ()
    key_file: Path | None = None
    ca_file: Path | None = None
    max_per_user: Positive = 100
    max_total: Positive = 100_000
    max_dead_letters: Positive = 1000
    max_in_flight: Positive = 1000
    notifications_per_second: Positive | None = None
    bytes_per_second: Positive | None = None
    push_timeout_ms: Positive = 15_000
    retry_delay_ms: Positive = 5000
    max_retry_delay_ms: Positive = 3_600_000


class StreamAuth(msgspec.Struct, frozen=True):
    """The roles that may read and write an event type; None if no roles were given."""

    required: bool | None = None
    read_roles: Roles | None = None
    write_roles: Roles | None = None
    plugins: tuple[str, ...] = ()


class StoragePolicyEntry(msgspec.Struct, frozen=True):
    """The retention of an event type."""

    retention_time: Span | None = None
    max_messages: Positive | None = None
    max_size: Annotated[int, Size()] | None = None
    allow_duplicates: bool | None = None
    compression: bool | None = None


class LatenessEntry(msgspec.Struct, frozen=True):
    """The watch for late notifications of an event type."""

    enabled: bool | None = None
    by: tuple[str, ...] | None = None
    tolerance: Span | None = None
    learn_days: Annotated[int, Whole(7, 400)] | None = None
    min_seen: Annotated[int, Whole(2, 400)] | None = None
    max_combinations: Annotated[int, Whole(1, 100_000)] | None = None


class Deployment(msgspec.Struct, frozen=True):
    """The namespace and pod of this process, for log records."""

    namespace: str | None = None
    pod: str | None = None


class Settings(msgspec.Struct, frozen=True):
    """Everything a server needs to know before it starts."""

    application: Application = Application()
    logging: Logging = Logging()
    notification_backend: Backend = Backend()
    watch_endpoint: WatchEndpoint = WatchEndpoint()
    limits: Limits = Limits()
    idempotency: Idempotency = Idempotency()
    notification_schema_strict: bool | None = None
    auth: Auth = Auth()
    metrics: Metrics = Metrics()
    ecpds: Ecpds = Ecpds()
    archive: Archive = Archive()
    insight: Insight = Insight()
    lateness: Lateness = Lateness()
    subscriptions: Subscriptions = Subscriptions()

    event_types: tuple[EventType, ...] = ()
    schema_configured: bool = False
    strict: bool = False
    policies: Mapping[str, StoragePolicy] = {}  # by topic base
    stream_auth: Mapping[str, StreamAuth] = {}  # by event type
    watched: tuple[Watched, ...] = ()  # the event types that are watched for lateness
    log_level: str = "info"
    log_levels: Mapping[str, str] = {}  # of modules that differ, by dotted name
    deployment: Deployment = Deployment()
    warnings: tuple[str, ...] = ()


DERIVED = frozenset(Settings.__struct_fields__[Settings.__struct_fields__.index("event_types") :])
"""The fields of Settings that follow from other keys and are not keys themselves."""
