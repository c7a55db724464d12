"""The metrics port: every series, and its samples at the time of a scrape."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from aviso_server import __version__
from aviso_server.archive.supervisor import State
from aviso_server.counters import UNKNOWN, Histogram, NotificationStatus
from aviso_server.delivery.clients import Send, Watcher
from aviso_server.delivery.hub import GENERIC
from aviso_server.diagnostics.log_records import RECORDS
from aviso_server.errors import LogError, StreamUnusable
from aviso_server.http.app import Service
from aviso_server.http.auth import OUTCOMES
from aviso_server.http.ecpds import DECISIONS, FETCHES
from aviso_server.http.request import Receive, new_request_id
from aviso_server.http.response import Response
from aviso_server.log.base import Batching, StreamState, Waiting
from aviso_server.model.lateness import Status
from aviso_server.model.times import SECOND, parse_instant
from aviso_server.subscriptions.active import Tally as SubscriptionTally
from aviso_server.subscriptions.lag import longest_lags, place
from aviso_server.subscriptions.subscription import Status as SubscriptionStatus

__all__ = ["SERIES", "MetricsApp"]

logger = logging.getLogger(__name__)


_COUNTERS = {
    "aviso_http_requests_total{route,method,status_code}": "Requests answered.",
    "aviso_backend_operations_total{backend,operation,outcome}": "Operations of the log.",
    "aviso_notifications_total{event_type,status}": "Publish requests by what came of them.",
    "aviso_sse_connections_total{route,event_type}": "Streams that were opened.",
    "aviso_sse_events_sent_total{route,event_type}": "Notifications handed to clients.",
    "aviso_sse_stream_errors_total{route,event_type}": "Streams that ended with an error.",
    "aviso_auth_requests_total{mode,outcome}": "Requests whose credentials were checked.",
    "aviso_ecpds_cache_hits_total": "Destination checks answered from memory.",
    "aviso_ecpds_cache_misses_total": "Destination checks that had to ask ECPDS.",
    "aviso_ecpds_access_decisions_total{outcome}": "Destination checks by their outcome.",
    "aviso_ecpds_fetch_total{outcome}": "Questions to ECPDS by their outcome.",
    "aviso_otlp_suppressed_log_records_total": "Log records not exported because of a secret.",
    "aviso_otlp_export_failures_total": "Batches of log records that could not be exported.",
    "aviso_watchers_fell_behind_total{event_type}": "Times a slow watcher's buffer was full and it went back to "
    "reading from the log.",
    "aviso_live_feed_restarts_total{event_type}": "Live feeds that failed and were restarted.",
    "aviso_live_notifications_total{event_type}": "New notifications looked up in the index.",
    "aviso_live_matches_total{event_type}": "Filters that a new notification passed.",
    "aviso_idempotent_replays_total{event_type}": "Publishes that were stored under their idempotency key before.",
    "aviso_archive_restarts_total": "Times that the pipeline process ended by itself.",
    "aviso_archive_errors_total": "Errors that the archive job has reported.",
    "aviso_lateness_alarms_total{event_type,status}": "Notifications about something overdue, or arrived after all, "
    "that this server has published.",
    "aviso_subscription_notifications_total{delivery}": "Notifications that a sink took or a worker acknowledged.",
    "aviso_subscription_requests_total{outcome}": "Requests to sinks.",
    "aviso_subscription_retries_total": "Requests to sinks that repeated a failed one.",
    "aviso_subscription_redeliveries_total": "Notifications that went to another worker because a lease had ended.",
    "aviso_subscription_parked_total{delivery}": "Notifications that became dead letters.",
    "aviso_subscription_gaps_total": "Times that retention removed notifications before a subscription came to them.",
    "aviso_subscription_refused_total": "Deliveries that the roles of the owner did not allow.",
    "aviso_subscription_fenced_total": "Times that another server had taken a subscription over.",
    "aviso_limit_refusals_total{limit}": "Requests and connections refused because of a limit.",
    "aviso_log_records_suppressed_total": "Log records left out because there were too many.",
    "aviso_otlp_dropped_log_records_total": "Log records not exported because of a backlog.",
    "aviso_otlp_span_export_failures_total": "Batches of spans that could not be exported.",
}
_GAUGES = {
    "aviso_build_info{version}": "Always 1; the version is in the label.",
    "aviso_http_requests_in_flight{method}": "Requests whose answer has not begun.",
    "aviso_sse_connections_active{route,event_type}": "Streams that are open.",
    "aviso_sse_unique_users_active{route}": "Different known users with an open stream.",
    "aviso_ecpds_cache_size": "Users whose destinations are remembered.",
    "aviso_watchers{event_type,state}": "Watchers that are live, or catching up from the log.",
    "aviso_watcher_backlog_bytes{event_type}": "What waits for watchers that read slowly.",
    "aviso_watcher_backlog_bytes_max": "What waits for the slowest watcher.",
    "aviso_index_filters{event_type}": "Different filters of live watchers.",
    "aviso_log_connected{backend}": "1 while the log can be written, else 0.",
    "aviso_log_notifications{event_type}": "Notifications that the log holds.",
    "aviso_log_bytes{event_type}": "Bytes of the notifications that the log holds.",
    "aviso_log_first_sequence{event_type}": "Oldest sequence that the log holds.",
    "aviso_log_last_sequence{event_type}": "Newest sequence that was given out.",
    "aviso_log_waiting": "Notifications that wait to be written.",
    "aviso_log_held_back{event_type}": "1 while the log holds more than its policy says because the archive has not "
    "had it for long.",
    "aviso_archive_process_state{state}": "1 for the state that the pipeline process is in.",
    "aviso_archive_job_state{state}": "1 for the state that the archive job is in.",
    "aviso_archive_last_error_timestamp_seconds": "When the last of them came; 0 if none has.",
    "aviso_archive_last_sequence{event_type}": "Newest sequence that is archived.",
    "aviso_archive_lag{event_type}": "Sequences that are not archived yet.",
    "aviso_archive_replays_active": "Streams that read the archive.",
    "aviso_archive_replays_waiting": "Streams that wait for their turn to read the archive.",
    "aviso_archive_removals_pending": "Deletes and wipes that the archive has not confirmed yet.",
    "aviso_audit_verdict{verdict}": "1 for the verdict of the last audit.",
    "aviso_audit_timestamp_seconds": "When the last audit began; 0 if there was none.",
    "aviso_audit_defects{event_type}": "Sequences in which the last audit found a defect.",
    "aviso_lateness_watched{event_type}": "Combinations that are expected at some time.",
    "aviso_lateness_overdue{event_type}": "Expected notifications that are overdue.",
    "aviso_subscriptions{delivery,status}": "Subscriptions that this server knows.",
    "aviso_subscriptions_failing{delivery}": "Active subscriptions of this server whose sink fails, or whose owner "
    "may no longer read.",
    "aviso_subscriptions_blocked": "Subscriptions that wait behind a notification which their sink does not take.",
    "aviso_subscription_lag{event_type,delivery}": "Sequences that the subscription of this server "
    "that is furthest behind has not come to.",
    "aviso_subscription_lag_seconds{event_type,delivery}": "Age of the oldest notification that a subscription "
    "of this server has not delivered, or not come to.",
    "aviso_subscription_in_flight": "Notifications that workers have.",
    "aviso_subscription_dead_letters{delivery}": "Dead letters that are kept.",
    "aviso_connections_active": "Clients that are connected.",
    "aviso_limit{limit}": "Limits as configured; one that is off is missing.",
    "aviso_tasks": "Tasks of the event loop.",
}
_HISTOGRAMS = {
    "aviso_http_request_duration_seconds{route,method}": "Time from a request's headers to the headers of its answer.",
    "aviso_backend_operation_duration_seconds{backend,operation,outcome}": "Time that operations of the log took.",
    "aviso_sse_connection_duration_seconds{route}": "How long streams were open.",
    "aviso_log_commit_size": "Notifications written to disk together.",
    "aviso_batch_notifications": "Notifications in a batch of a publisher.",
    "aviso_event_loop_lag_seconds": "How late the event loop came to its turns, 50 a second.",
}


class Series(msgspec.Struct, frozen=True):
    """One series as its collector, the documentation and the dashboard know it."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


SERIES = {
    name: Series(kind, tuple(labels), meaning)
    for kind, group in (("counter", _COUNTERS), ("gauge", _GAUGES), ("histogram", _HISTOGRAMS))
    for notation, meaning in group.items()
    for name, *labels in [re.findall(r"\w+", notation)]
}
"""All series by name, except the `process_*` series of the Prometheus client library."""

Samples = Iterator[tuple[str, float | Histogram | Mapping[Any, float | Histogram]]]
"""Names of series, each with its value or, if it has labels, its values by label or labels."""

_PROCESS_STATES = ("off", *get_args(State))
_JOB_STATES = ("off", "starting", "running", "waiting", "standby", "stopped")
_VERDICTS = ("none", "clean", "defects", "unchecked")
_ROUTES = {"watch": "/api/v1/watch", "replay": "/api/v1/replay"}
_AUTH_MODES = ("direct", "trusted_proxy")


def families(
    service: Service, streams: Mapping[str, StreamState], waited: Mapping[tuple[str, str], float]
) -> Iterator[Metric]:
    """Yield all series; `streams` is what the log holds, `waited` how long subscriptions are behind, by event type."""
    for part in (_requests, _operations, _open_streams, _auth, _delivery, _lateness, _process):
        yield from itertools.starmap(_family, part(service))
    for counted in (_log, _archive):
        yield from itertools.starmap(_family, counted(service, streams))
    yield from itertools.starmap(_family, _subscriptions(service, streams, waited))
    threads = GaugeMetricFamily("process_threads", "Number of OS threads in the process.")
    threads.add_metric((), _threads())
    yield threads


_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def _family(name: str, samples: float | Histogram | Mapping[Any, float | Histogram]) -> Metric:
    series = SERIES[name]
    family: Any = _FAMILIES[series.kind](name.removesuffix("_total"), series.meaning, labels=series.labels)
    for key, value in samples.items() if isinstance(samples, Mapping) else [((), samples)]:
        labels = [key] if isinstance(key, str) else [str(each) for each in key]
        if isinstance(value, Histogram):
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            family.add_metric(labels, list(zip(bounds, itertools.accumulate(value.counts), strict=True)), value.sum)
        else:
            family.add_metric(labels, value)
    found: Metric = family
    return found


def _requests(service: Service) -> Samples:
    tally, names = service.tally, service.catalogue.event_types
    yield "aviso_http_requests_total", tally.requests
    yield "aviso_http_request_duration_seconds", tally.durations
    yield "aviso_http_requests_in_flight", tally.in_flight
    known: list[tuple[str, NotificationStatus]] = [(UNKNOWN, "error"), (UNKNOWN, "rejected")]
    for name in names:
        known += [(name, "success"), (name, "error")]
    yield "aviso_notifications_total", {**dict.fromkeys(known, 0), **tally.notifications}
    yield "aviso_batch_notifications", tally.batch_sizes
    yield "aviso_idempotent_replays_total", {**dict.fromkeys(names, 0), **tally.replayed}


def _operations(service: Service) -> Samples:
    durations = {(service.log.kind, *key): histogram for key, histogram in service.operations.durations.items()}
    yield "aviso_backend_operations_total", {labels: histogram.total for labels, histogram in durations.items()}
    yield "aviso_backend_operation_duration_seconds", durations


def _open_streams(service: Service) -> Samples:
    hub = service.hub
    flows = {(_ROUTES[endpoint], name): flow for (endpoint, name), flow in hub.flows.items()}
    active = dict.fromkeys(flows, 0)
    users: dict[str, set[str]] = {route: set() for route in _ROUTES.values()}
    for stream in hub.open_streams:
        route = _ROUTES[stream.endpoint]
        active[route, service.label(stream.wanted.event_type)] += 1
        if stream.user is not None:
            users[route].add(stream.user)
    yield "aviso_sse_connections_active", active
    yield "aviso_sse_connections_total", {labels: flow.opened for labels, flow in flows.items()}
    yield "aviso_sse_unique_users_active", {route: len(names) for route, names in users.items()}
    yield "aviso_sse_events_sent_total", {labels: flow.sent for labels, flow in flows.items()}
    yield "aviso_sse_stream_errors_total", {labels: flow.failed for labels, flow in flows.items()}
    lifetimes = {_ROUTES[endpoint]: histogram for endpoint, histogram in hub.lifetimes.items()}
    yield "aviso_sse_connection_duration_seconds", lifetimes


def _auth(service: Service) -> Samples:
    outcomes = {(mode, outcome): 0 for mode in _AUTH_MODES for outcome in OUTCOMES}
    if service.gate is not None:
        outcomes |= {(service.gate.mode, outcome): count for outcome, count in service.gate.outcomes.items()}
    yield "aviso_auth_requests_total", outcomes
    plugin = service.ecpds
    destinations = None if plugin is None else plugin.destinations
    yield "aviso_ecpds_cache_hits_total", 0 if destinations is None else destinations.hits
    yield "aviso_ecpds_cache_misses_total", 0 if destinations is None else destinations.misses
    yield "aviso_ecpds_cache_size", 0 if destinations is None else len(destinations)
    decisions = dict.fromkeys(DECISIONS, 0) if plugin is None else plugin.decisions
    fetches = dict.fromkeys(FETCHES, 0) if destinations is None else destinations.fetches
    yield "aviso_ecpds_access_decisions_total", decisions
    yield "aviso_ecpds_fetch_total", fetches


def _delivery(service: Service) -> Samples:
    names = [*service.catalogue.event_types, GENERIC]
    states = {(name, state): 0 for name in names for state in ("live", "catching_up")}
    backlog, filters, largest = dict.fromkeys(names, 0), dict.fromkeys(names, 0), 0
    for stream in service.hub.open_streams:
        if isinstance(stream, Watcher):
            name = service.label(stream.wanted.event_type)
            states[name, "catching_up" if stream.catching_up else "live"] += 1
            backlog[name] += stream.backlog_bytes
            largest = max(largest, stream.backlog_bytes)
    for feed in service.hub.feeds:
        filters[service.label(feed.event_type)] += feed.index_size
    flows = {name: flow for (endpoint, name), flow in service.hub.flows.items() if endpoint == "watch"}
    yield "aviso_watchers", states
    yield "aviso_watcher_backlog_bytes", backlog
    yield "aviso_watcher_backlog_bytes_max", largest
    yield "aviso_watchers_fell_behind_total", {name: flow.fell_behind for name, flow in flows.items()}
    yield "aviso_live_feed_restarts_total", {name: flow.restarts for name, flow in flows.items()}
    yield "aviso_live_notifications_total", {name: flow.examined for name, flow in flows.items()}
    yield "aviso_live_matches_total", {name: flow.matched for name, flow in flows.items()}
    yield "aviso_index_filters", filters


def _log(service: Service, streams: Mapping[str, StreamState]) -> Samples:
    log = service.log
    # several streams hide behind `generic`, each with its own numbers
    ranges = {name: state for name, state in streams.items() if name != GENERIC}
    yield "aviso_log_connected", {log.kind: log.connected}
    yield "aviso_log_notifications", {name: state.count for name, state in streams.items()}
    yield "aviso_log_bytes", {name: state.bytes for name, state in streams.items()}
    yield "aviso_log_first_sequence", {name: state.first for name, state in ranges.items()}
    yield "aviso_log_last_sequence", {name: state.last for name, state in ranges.items()}
    yield "aviso_log_commit_size", log.commit_sizes if isinstance(log, Batching) else {}
    yield "aviso_log_waiting", log.waiting if isinstance(log, Batching) else 0
    held_back = log.held_back if isinstance(log, Waiting) else frozenset[str]()
    late = {service.label_of_stream(stream) for stream in held_back}
    yield "aviso_log_held_back", {name: name in late for name in streams}


def _archive(service: Service, streams: Mapping[str, StreamState]) -> Samples:
    """Yield the series of the archive, with zeros on a server without one."""
    lake, names = service.archive, service.catalogue.event_types
    process = "off" if lake is None else lake.supervisor.state
    job = "off" if lake is None else lake.job.state
    yield "aviso_archive_process_state", {state: state == process for state in _PROCESS_STATES}
    yield "aviso_archive_job_state", {state: state == job for state in _JOB_STATES}
    yield "aviso_archive_restarts_total", 0 if lake is None else lake.supervisor.restarts
    yield "aviso_archive_errors_total", 0 if lake is None else lake.errors
    yield "aviso_archive_last_error_timestamp_seconds", 0 if lake is None else lake.last_error_at
    yield "aviso_archive_replays_active", 0 if lake is None else lake.slots.taken
    yield "aviso_archive_replays_waiting", 0 if lake is None else lake.slots.waiting
    yield "aviso_archive_removals_pending", 0 if lake is None else len(lake.journal.pending)
    archived = {name: 0 if lake is None else lake.watermark(each.base) for name, each in names.items()}
    lasts = {name: state.last for name, state in streams.items() if lake is not None}
    yield "aviso_archive_last_sequence", archived
    yield "aviso_archive_lag", {name: max(0, lasts.get(name, 0) - last) for name, last in archived.items()}
    summary = None if lake is None or lake.audited is None else lake.audited.result
    verdict = "none" if summary is None else summary.verdict
    audited = {} if summary is None else summary.streams
    yield "aviso_audit_verdict", {each: each == verdict for each in _VERDICTS}
    yield "aviso_audit_timestamp_seconds", 0 if summary is None else parse_instant("at", summary.at) / SECOND
    defects = {name: audited[each.base].defects if each.base in audited else 0 for name, each in names.items()}
    yield "aviso_audit_defects", defects


_DELIVERIES = ("push", "pull")
_STATUSES = get_args(SubscriptionStatus)


def _subscriptions(
    service: Service, streams: Mapping[str, StreamState], waited: Mapping[tuple[str, str], float]
) -> Samples:
    """Yield the series of subscriptions, with zeros on a server without them."""
    known = service.subscriptions
    counts = {(delivery, status): 0 for delivery in _DELIVERIES for status in _STATUSES}
    failing, letters = dict.fromkeys(_DELIVERIES, 0), dict.fromkeys(_DELIVERIES, 0)
    lags = {(name, delivery): 0 for name in service.catalogue.event_types for delivery in _DELIVERIES}
    ages = {kind: waited.get(kind, 0.0) for kind in lags}
    blocked = in_flight = 0
    for active in () if known is None else known.all:
        delivery, state = active.delivery, active.state
        counts[delivery, active.status] += 1
        letters[delivery] += state.parked
        in_flight += len(state.leased)
        blocked += state.blocked
    for active in () if known is None else known.served():
        delivery, name = active.delivery, "" if active.wanted is None else active.wanted.event_type
        failing[delivery] += bool(active.state.attempts or active.problem)
        if (name, delivery) in lags and name in streams:
            lags[name, delivery] = max(lags[name, delivery], streams[name].last + 1 - place(active))
    tally = SubscriptionTally() if known is None else known.tally
    yield "aviso_subscriptions", counts
    yield "aviso_subscriptions_failing", failing
    yield "aviso_subscriptions_blocked", blocked
    yield "aviso_subscription_lag", lags
    yield "aviso_subscription_lag_seconds", ages
    yield "aviso_subscription_in_flight", in_flight
    yield "aviso_subscription_dead_letters", letters
    yield "aviso_subscription_notifications_total", tally.delivered
    yield "aviso_subscription_requests_total", tally.requests
    yield "aviso_subscription_retries_total", tally.retries
    yield "aviso_subscription_redeliveries_total", tally.redelivered
    yield "aviso_subscription_parked_total", tally.parked
    yield "aviso_subscription_gaps_total", tally.gaps
    yield "aviso_subscription_refused_total", tally.refused
    yield "aviso_subscription_fenced_total", tally.fenced


def _lateness(service: Service) -> Samples:
    watch, names = service.lateness, service.catalogue.event_types
    detectors, none = {} if watch is None else watch.detectors, dict.fromkeys(names, 0)
    yield "aviso_lateness_watched", none | {name: each.watching for name, each in detectors.items()}
    yield "aviso_lateness_overdue", none | {name: len(each.overdue) for name, each in detectors.items()}
    pairs = [(name, status) for name in names for status in get_args(Status)]
    yield "aviso_lateness_alarms_total", {pair: 0 if watch is None else watch.published[pair] for pair in pairs}


def _process(service: Service) -> Samples:
    yield "aviso_build_info", {__version__: 1}
    yield "aviso_connections_active", len(service.connections)
    yield "aviso_limit", service.limits.configured
    yield "aviso_limit_refusals_total", service.limits.refused
    yield "aviso_tasks", len(asyncio.all_tasks())
    yield "aviso_event_loop_lag_seconds", service.loop_lag
    yield "aviso_log_records_suppressed_total", RECORDS.suppressed
    yield "aviso_otlp_suppressed_log_records_total", RECORDS.withheld
    yield "aviso_otlp_dropped_log_records_total", RECORDS.not_exported
    yield "aviso_otlp_export_failures_total", RECORDS.failed_exports["logs"]
    yield "aviso_otlp_span_export_failures_total", RECORDS.failed_exports["traces"]


def _threads() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return threading.active_count()


_CONTENT_TYPE = b"text/plain; version=0.0.4"
_LOG_SECONDS = 2.0  # seconds for a log that lives elsewhere to say what it holds
_MAX_GENERIC = 256  # streams of generic event types that are asked for their size
_NOTHING = StreamState(first=1, last=0, count=0, bytes=0)


class _Family(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class MetricsApp:
    """The ASGI application of the metrics port."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams: dict[str, StreamState] = {}  # what the log said last
        self._waited: Mapping[tuple[str, str], float] = {}  # the same of what subscriptions wait for
        self._process = ProcessCollector(registry=None)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = new_request_id()
        response = Response(404)
        if (scope["method"], scope["path"]) == ("GET", "/metrics"):
            await self._ask_log()
            response = Response(200, await self._written(), _CONTENT_TYPE)
        await response.send(send, request_id)

    async def _written(self) -> bytes:
        """Write all series, in a thread: with hundreds of event types that takes long."""
        found = []
        for family in itertools.chain(families(self._service, self._streams, self._waited), self._process.collect()):
            found.append(family)
            await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: b"".join([generate_latest(_Family(family)) for family in found]))

    async def _ask_log(self) -> None:
        """Ask the log what it holds; a log that cannot say leaves the last answer standing."""
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                self._streams = await _held(self._service)
                if (known := self._service.subscriptions) is not None:
                    lasts = {name: state.last for name, state in self._streams.items()}
                    self._waited = await longest_lags(self._service.log, known.served(), lasts, self._service.clock())
        except (LogError, TimeoutError) as error:
            logger.debug("the log does not say what it holds: %s", error, extra={"event": "metrics.log.unavailable"})


async def _held(service: Service) -> dict[str, StreamState]:
    held = dict.fromkeys([*service.catalogue.event_types, GENERIC], _NOTHING)
    generic = 0
    # only those that exist: asking a broker for others would make them
    for stream in await service.log.streams():
        label = service.label_of_stream(stream)
        if label == GENERIC:
            generic += 1
            if generic > _MAX_GENERIC:
                continue
        try:
            state = await service.log.state(stream)
        except StreamUnusable:
            continue
        if label == GENERIC:
            state = StreamState(1, 0, held[label].count + state.count, held[label].bytes + state.bytes)
        held[label] = state
    return held
