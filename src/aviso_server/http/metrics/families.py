"""The numbers of a running server as Prometheus families."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from aviso_server import __version__
from aviso_server.counts import OPERATIONS, Histogram
from aviso_server.delivery.hub import GENERIC
from aviso_server.delivery.watcher import Watcher
from aviso_server.diagnostics import RECORDS
from aviso_server.http.ecpds import DECISIONS, FETCHES
from aviso_server.http.metrics.archive import archive_samples
from aviso_server.http.metrics.lateness import lateness_samples
from aviso_server.http.metrics.series import SERIES
from aviso_server.http.metrics.tally import UNKNOWN, NotificationStatus
from aviso_server.http.service import Service
from aviso_server.log.base import Batching, StreamState

__all__ = ["families"]

Labels = Sequence[str]
Samples = Iterable[tuple[Labels, float]]
Families = Iterator[Metric]

_ROUTES = {"watch": "/api/v1/watch", "replay": "/api/v1/replay"}
_AUTH_MODES = ("direct", "trusted_proxy")
_AUTH_OUTCOMES = ("success", "unauthorized", "forbidden", "service_unavailable")


def families(service: Service, streams: Mapping[str, StreamState]) -> Families:
    """All series; `streams` is what the log holds, by the event type that labels it."""
    yield _plain("aviso_build_info", [([__version__], 1)])
    yield from _requests(service)
    yield from _operations(service)
    yield from _streams(service)
    yield from _auth(service)
    yield from _delivery(service)
    yield from _log(service, streams)
    yield from (_plain(name, samples) for name, samples in archive_samples(service, streams))
    yield from (_plain(name, samples) for name, samples in lateness_samples(service))
    yield from _process(service)


def _requests(service: Service) -> Families:
    tally = service.tally
    yield _plain(
        "aviso_http_requests_total",
        [([route, method, str(status)], count) for (route, method, status), count in tally.requests.items()],
    )
    yield _histogram("aviso_http_request_duration_seconds", tally.durations.items())
    yield _plain("aviso_http_requests_in_flight", [([method], count) for method, count in tally.in_flight.items()])
    known: list[tuple[str, NotificationStatus]] = [(UNKNOWN, "error"), (UNKNOWN, "rejected")]
    for name in service.catalogue.event_types:
        known += [(name, "success"), (name, "error")]
    counted = {**dict.fromkeys(known, 0), **tally.notifications}
    yield _plain("aviso_notifications_total", counted.items())
    yield _histogram("aviso_batch_notifications", [((), tally.batch_sizes)])
    replayed = {**dict.fromkeys(service.catalogue.event_types, 0), **tally.replayed}
    yield _plain("aviso_idempotent_replays_total", [([name], count) for name, count in replayed.items()])


def _operations(service: Service) -> Families:
    kind = service.log.kind
    durations = {
        (kind, operation, outcome): histogram
        for (operation, outcome), histogram in service.operations.durations.items()
        if operation in OPERATIONS
    }
    counts = [(labels, histogram.total) for labels, histogram in durations.items()]
    yield _plain("aviso_backend_operations_total", counts)
    yield _histogram("aviso_backend_operation_duration_seconds", durations.items())


def _streams(service: Service) -> Families:
    hub = service.hub
    active: dict[tuple[str, str], int] = {(_ROUTES[endpoint], name): 0 for endpoint, name in hub.flows}
    users: dict[str, set[str]] = {route: set() for route in _ROUTES.values()}
    for stream in hub.open_streams:
        route = _ROUTES[stream.endpoint]
        active[route, service.label(stream.wanted.event_type)] += 1
        if stream.user is not None:
            users[route].add(stream.user)
    flows = [((_ROUTES[endpoint], name), flow) for (endpoint, name), flow in hub.flows.items()]
    yield _plain("aviso_sse_connections_active", active.items())
    yield _plain("aviso_sse_connections_total", [(labels, flow.opened) for labels, flow in flows])
    yield _plain("aviso_sse_unique_users_active", [([route], len(names)) for route, names in users.items()])
    yield _plain("aviso_sse_events_sent_total", [(labels, flow.sent) for labels, flow in flows])
    yield _plain("aviso_sse_stream_errors_total", [(labels, flow.failed) for labels, flow in flows])
    lifetimes = [([_ROUTES[endpoint]], histogram) for endpoint, histogram in hub.lifetimes.items()]
    yield _histogram("aviso_sse_connection_duration_seconds", lifetimes)


def _auth(service: Service) -> Families:
    outcomes = {(mode, outcome): 0 for mode in _AUTH_MODES for outcome in _AUTH_OUTCOMES}
    if service.gate is not None:
        outcomes |= {(service.gate.mode, outcome): count for outcome, count in service.gate.outcomes.items()}
    yield _plain("aviso_auth_requests_total", outcomes.items())
    plugin = service.ecpds
    destinations = None if plugin is None else plugin.destinations
    yield _plain("aviso_ecpds_cache_hits_total", [((), 0 if destinations is None else destinations.hits)])
    yield _plain("aviso_ecpds_cache_misses_total", [((), 0 if destinations is None else destinations.misses)])
    yield _plain("aviso_ecpds_cache_size", [((), 0 if destinations is None else len(destinations))])
    decisions = dict.fromkeys(DECISIONS, 0) if plugin is None else plugin.decisions
    fetches = dict.fromkeys(FETCHES, 0) if destinations is None else destinations.fetches
    yield _plain("aviso_ecpds_access_decisions_total", [([outcome], count) for outcome, count in decisions.items()])
    yield _plain("aviso_ecpds_fetch_total", [([outcome], count) for outcome, count in fetches.items()])


def _delivery(service: Service) -> Families:
    names = [*service.catalogue.event_types, GENERIC]
    states = {(name, state): 0 for name in names for state in ("live", "catching_up")}
    backlog = dict.fromkeys(names, 0)
    largest = 0
    for stream in service.hub.open_streams:
        if isinstance(stream, Watcher):
            name = service.label(stream.wanted.event_type)
            states[name, "catching_up" if stream.catching_up else "live"] += 1
            backlog[name] += stream.backlog_bytes
            largest = max(largest, stream.backlog_bytes)
    filters = dict.fromkeys(names, 0)
    for tail in service.hub.tails:
        filters[service.label_of_stream(tail.stream)] += tail.index_size
    flows = [([name], flow) for (endpoint, name), flow in service.hub.flows.items() if endpoint == "watch"]
    yield _plain("aviso_watchers", states.items())
    yield _plain("aviso_watcher_backlog_bytes", [([name], size) for name, size in backlog.items()])
    yield _plain("aviso_watcher_backlog_bytes_max", [((), largest)])
    yield _plain("aviso_watchers_fell_behind_total", [(labels, flow.fell_behind) for labels, flow in flows])
    yield _plain("aviso_live_notifications_total", [(labels, flow.examined) for labels, flow in flows])
    yield _plain("aviso_live_matches_total", [(labels, flow.matched) for labels, flow in flows])
    yield _plain("aviso_index_filters", [([name], count) for name, count in filters.items()])


def _log(service: Service, streams: Mapping[str, StreamState]) -> Families:
    log = service.log
    yield _plain("aviso_log_connected", [([log.kind], float(log.connected))])
    yield _plain("aviso_log_notifications", [([name], state.count) for name, state in streams.items()])
    yield _plain("aviso_log_bytes", [([name], state.bytes) for name, state in streams.items()])
    # several streams hide behind `generic`, each with its own numbers
    ranges = [(name, state) for name, state in streams.items() if name != GENERIC]
    yield _plain("aviso_log_first_sequence", [([name], state.first) for name, state in ranges])
    yield _plain("aviso_log_last_sequence", [([name], state.last) for name, state in ranges])
    sizes = [((), log.commit_sizes)] if isinstance(log, Batching) else []
    yield _histogram("aviso_log_commit_size", sizes)
    yield _plain("aviso_log_waiting", [((), log.waiting if isinstance(log, Batching) else 0)])


def _process(service: Service) -> Families:
    limits = service.limits
    yield _plain("aviso_connections_active", [((), service.connections())])
    yield _plain("aviso_limit", [([name], value) for name, value in limits.configured.items()])
    yield _plain("aviso_limit_refusals_total", [([name], count) for name, count in limits.refused.items()])
    yield _plain("aviso_tasks", [((), len(asyncio.all_tasks()))])
    yield _plain("aviso_log_records_suppressed_total", [((), RECORDS.suppressed)])
    yield _plain("aviso_otlp_suppressed_log_records_total", [((), RECORDS.not_exported)])
    yield _plain("aviso_otlp_export_failures_total", [((), RECORDS.failed_exports)])


def _plain(name: str, samples: Samples) -> Metric:
    series = SERIES[name]
    family: CounterMetricFamily | GaugeMetricFamily
    if series.kind == "counter":
        family = CounterMetricFamily(name.removesuffix("_total"), series.meaning, labels=series.labels)
    else:
        family = GaugeMetricFamily(name, series.meaning, labels=series.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, samples: Iterable[tuple[Labels, Histogram]]) -> Metric:
    series = SERIES[name]
    family = HistogramMetricFamily(name, series.meaning, labels=series.labels)
    for labels, histogram in samples:
        below = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, map(float, histogram.bounds)), "+Inf"], histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(labels, buckets, histogram.sum)
    return family
