"""The settings of a server: one frozen value, shaped like the configuration file.

Every field is one key of the file; its annotation says what is accepted and its default what is meant when the
key is absent. The reader (`reading.py`), the list of known keys (`keys.py`) and the reference page all come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from aviso_server.config.rule import Duration, Secret, Text, Whole
from aviso_server.log.base import StoragePolicy
from aviso_server.model.lateness.watched import Watched
from aviso_server.model.schema import EventType

__all__ = [
    "Application",
    "Archive",
    "Auth",
    "Backend",
    "Deployment",
    "Ecpds",
    "Homepage",
    "Idempotency",
    "InMemory",
    "Insight",
    "JetStream",
    "Lateness",
    "Limits",
    "Logging",
    "Metrics",
    "Otlp",
    "Roles",
    "Settings",
    "Sqlite",
    "StreamAuth",
    "Tls",
    "WatchEndpoint",
]

Count = Annotated[int, Whole()]
Positive = Annotated[int, Whole(minimum=1)]
Signed = Annotated[int, Whole(minimum=-(2**63))]
Port = Annotated[int, Whole(maximum=65535)]
Span = Annotated[int, Duration()]
Filled = Annotated[str, Text(blank=False)]
Clean = Annotated[str, Text(blank=False, padded=False)]
Roles = Mapping[str, tuple[str, ...]]


class Homepage(msgspec.Struct, frozen=True):
    """Where the links of the home page lead."""

    client_documentation_url: str = "https://sites.ecmwf.int/docs/aviso-client/main/"
    client_repository_url: str = "https://github.com/ecmwf/aviso-client"
    server_documentation_url: str = "https://sites.ecmwf.int/docs/aviso-server/main/"
    server_repository_url: str = "https://github.com/ecmwf/aviso-server"


class Application(msgspec.Struct, frozen=True):
    """Where the server listens and how it names itself."""

    host: Filled = "127.0.0.1"
    port: Port = 8000
    base_url: Filled = "http://localhost"
    static_files_path: Path = Path("/app/static")
    homepage: Homepage = Homepage()


class Otlp(msgspec.Struct, frozen=True):
    """Export of log records to a collector."""

    enabled: bool = False
    endpoint: str | None = None
    protocol: Literal["grpc", "http"] = "grpc"


class Logging(msgspec.Struct, frozen=True):
    """What is logged; the form is always one JSON object per line."""

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
    retention_policy: Literal["limits", "interest", "workqueue"] = "limits"
    discard_policy: Literal["old", "new"] = "old"
    enable_auto_reconnect: bool = True
    max_reconnect_attempts: Count = 5
    reconnect_delay_ms: Positive = 2000
    publish_retry_attempts: Positive = 5
    publish_retry_base_delay_ms: Positive = 150


class Backend(msgspec.Struct, frozen=True):
    """Where notifications are kept."""

    kind: Literal["sqlite", "in_memory", "jetstream"] = "sqlite"
    sqlite: Sqlite = Sqlite()
    in_memory: InMemory = InMemory()
    jetstream: JetStream = JetStream()


class WatchEndpoint(msgspec.Struct, frozen=True):
    """How streams to watchers behave."""

    sse_heartbeat_interval_sec: Positive = 10
    connection_max_duration_sec: Count = 3600
    replay_batch_size: Positive = 100
    max_historical_notifications: Positive | None = None
    replay_batch_delay_ms: Count = 0
    concurrent_notification_processing: Count = 15
    buffer_bytes: Positive = 1_048_576


class Limits(msgspec.Struct, frozen=True):
    """How much one server takes on."""

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
    """How long the keys of publishers are remembered."""

    retention: Span = 604_800_000_000_000
    max_keys: Positive = 10_000_000


class Auth(msgspec.Struct, frozen=True):
    """Who may do what."""

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


class StreamAuth(msgspec.Struct, frozen=True):
    """Who may read and write one event type; None means no roles were given."""

    required: bool
    read_roles: Roles | None = None
    write_roles: Roles | None = None
    plugins: tuple[str, ...] = ()


class Deployment(msgspec.Struct, frozen=True):
    """Where this process runs, for log records."""

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


DERIVED = frozenset(
    {
        "event_types",
        "schema_configured",
        "strict",
        "policies",
        "stream_auth",
        "watched",
        "log_level",
        "log_levels",
        "deployment",
        "warnings",
    }
)
"""The fields of Settings that follow from other keys and are not keys themselves."""
