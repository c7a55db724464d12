"""Every series that the server exports: its name, its labels and what it says."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["SERIES", "Series"]


class Series(msgspec.Struct, frozen=True):
    """One series as its collector, the documentation and the dashboard know it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


_LIST = (
    # Known from other servers of this protocol, with the same names and labels.
    Series("aviso_build_info", "gauge", ("version",), "Always 1; the version is in the label."),
    Series("aviso_http_requests_total", "counter", ("route", "method", "status_code"), "Requests answered."),
    Series(
        "aviso_http_request_duration_seconds",
        "histogram",
        ("route", "method"),
        "Time from a request's headers to the headers of its answer.",
    ),
    Series("aviso_http_requests_in_flight", "gauge", ("method",), "Requests whose answer has not begun."),
    Series("aviso_backend_operations_total", "counter", ("backend", "operation", "outcome"), "Operations of the log."),
    Series(
        "aviso_backend_operation_duration_seconds",
        "histogram",
        ("backend", "operation", "outcome"),
        "Time that operations of the log took.",
    ),
    Series("aviso_notifications_total", "counter", ("event_type", "status"), "Publish requests by what came of them."),
    Series("aviso_sse_connections_active", "gauge", ("route", "event_type"), "Streams that are open."),
    Series("aviso_sse_connections_total", "counter", ("route", "event_type"), "Streams that were opened."),
    Series("aviso_sse_unique_users_active", "gauge", ("route",), "Different known users with an open stream."),
    Series("aviso_sse_events_sent_total", "counter", ("route", "event_type"), "Notifications handed to clients."),
    Series("aviso_sse_stream_errors_total", "counter", ("route", "event_type"), "Streams that ended with an error."),
    Series("aviso_sse_connection_duration_seconds", "histogram", ("route",), "How long streams were open."),
    Series("aviso_auth_requests_total", "counter", ("mode", "outcome"), "Requests whose credentials were checked."),
    Series("aviso_ecpds_cache_hits_total", "counter", (), "Destination checks answered from memory."),
    Series("aviso_ecpds_cache_misses_total", "counter", (), "Destination checks that had to ask ECPDS."),
    Series("aviso_ecpds_cache_size", "gauge", (), "Users whose destinations are remembered."),
    Series("aviso_ecpds_access_decisions_total", "counter", ("outcome",), "Destination checks by their outcome."),
    Series("aviso_ecpds_fetch_total", "counter", ("outcome",), "Questions to ECPDS by their outcome."),
    Series("aviso_otlp_suppressed_log_records_total", "counter", (), "Log records not exported because of a backlog."),
    Series("aviso_otlp_export_failures_total", "counter", (), "Attempts to export log records or spans that failed."),
    # Ours.
    Series("aviso_watchers", "gauge", ("event_type", "state"), "Watchers that are live, or catching up from the log."),
    Series("aviso_watcher_backlog_bytes", "gauge", ("event_type",), "What waits for watchers that read slowly."),
    Series("aviso_watcher_backlog_bytes_max", "gauge", (), "What waits for the slowest watcher."),
    Series(
        "aviso_watchers_fell_behind_total",
        "counter",
        ("event_type",),
        "Times a slow watcher's buffer was full and it went back to reading from the log.",
    ),
    Series("aviso_live_notifications_total", "counter", ("event_type",), "New notifications looked up in the index."),
    Series("aviso_live_matches_total", "counter", ("event_type",), "Filters that a new notification passed."),
    Series("aviso_index_filters", "gauge", ("event_type",), "Different filters of live watchers."),
    Series("aviso_log_connected", "gauge", ("backend",), "1 while the log can be written, else 0."),
    Series("aviso_log_notifications", "gauge", ("event_type",), "Notifications that the log holds."),
    Series("aviso_log_bytes", "gauge", ("event_type",), "Bytes of the notifications that the log holds."),
    Series("aviso_log_first_sequence", "gauge", ("event_type",), "Oldest sequence that the log holds."),
    Series("aviso_log_last_sequence", "gauge", ("event_type",), "Newest sequence that was given out."),
    Series("aviso_log_commit_size", "histogram", (), "Notifications written to disk together."),
    Series("aviso_log_waiting", "gauge", (), "Notifications that wait to be written."),
    Series("aviso_batch_notifications", "histogram", (), "Notifications in a batch of a publisher."),
    Series(
        "aviso_idempotent_replays_total",
        "counter",
        ("event_type",),
        "Publishes that were stored under their idempotency key before.",
    ),
    Series(
        "aviso_log_held_back",
        "gauge",
        ("event_type",),
        "1 while the log holds more than its policy says because the archive has not had it for long.",
    ),
    Series("aviso_archive_process_state", "gauge", ("state",), "1 for the state that the pipeline process is in."),
    Series("aviso_archive_job_state", "gauge", ("state",), "1 for the state that the archive job is in."),
    Series("aviso_archive_restarts_total", "counter", (), "Times that the pipeline process ended by itself."),
    Series("aviso_archive_errors_total", "counter", (), "Errors that the archive job has reported."),
    Series("aviso_archive_last_error_timestamp_seconds", "gauge", (), "When the last of them came; 0 if none has."),
    Series("aviso_archive_last_sequence", "gauge", ("event_type",), "Newest sequence that is archived."),
    Series("aviso_archive_lag", "gauge", ("event_type",), "Sequences that are not archived yet."),
    Series("aviso_archive_replays_active", "gauge", (), "Streams that read the archive."),
    Series("aviso_archive_replays_waiting", "gauge", (), "Streams that wait for their turn to read the archive."),
    Series("aviso_archive_removals_pending", "gauge", (), "Deletes and wipes that the archive has not confirmed yet."),
    Series("aviso_audit_verdict", "gauge", ("verdict",), "1 for the verdict of the last audit."),
    Series("aviso_audit_timestamp_seconds", "gauge", (), "When the last audit began; 0 if there was none."),
    Series("aviso_audit_defects", "gauge", ("event_type",), "Sequences in which the last audit found a defect."),
    Series("aviso_lateness_watched", "gauge", ("event_type",), "Combinations that are expected at some time."),
    Series("aviso_lateness_overdue", "gauge", ("event_type",), "Expected notifications that are overdue."),
    Series(
        "aviso_lateness_alarms_total",
        "counter",
        ("event_type", "status"),
        "Notifications about something overdue, or arrived after all, that this server has published.",
    ),
    Series("aviso_connections_active", "gauge", (), "Clients that are connected."),
    Series("aviso_limit", "gauge", ("limit",), "Limits as configured; one that is off is missing."),
    Series("aviso_limit_refusals_total", "counter", ("limit",), "Requests and connections refused because of a limit."),
    Series("aviso_log_records_suppressed_total", "counter", (), "Log records left out because there were too many."),
    Series("aviso_tasks", "gauge", (), "Tasks of the event loop."),
)

SERIES = {series.name: series for series in _LIST}
"""All of them by name, besides the `process_*` series of the Prometheus client library."""
