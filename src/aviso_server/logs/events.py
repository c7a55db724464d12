"""Every event name of a log record, with the level it has and what it means."""

from __future__ import annotations

from typing import Literal

__all__ = ["EVENTS", "Level"]

Level = Literal["debug", "info", "warn", "error"]

EVENTS: dict[str, tuple[Level, str]] = {
    # Start and stop
    "startup.configuration.loaded": ("info", "The configuration was read and is usable."),
    "startup.configuration.dumped": ("info", "The configuration in full, without secrets."),
    "startup.configuration.warning": ("warn", "Something in the configuration has no effect."),
    "configuration.schema_strict.explicit_disabled": ("warn", "Event types that nobody configured are accepted."),
    "startup.auth.weak_secret": ("warn", "The secret of the tokens is short enough to be guessed."),
    "startup.server.started": ("info", "The server listens."),
    "startup.server.failed": ("error", "The main port cannot be used."),
    "startup.backend.failed": ("error", "The log cannot be opened."),
    "startup.archive.failed": ("error", "The archive cannot be used with this log."),
    "startup.metrics.failed": ("error", "The metrics port cannot be used."),
    "startup.otlp.failed": ("error", "Log export is on, but what it needs is not installed."),
    "startup.signal.sigterm.received": ("info", "The system asks the server to stop."),
    "startup.signal.sigint.received": ("info", "Somebody at a terminal asks the server to stop."),
    "startup.shutdown.received": ("info", "Open streams are told goodbye."),
    "startup.server.stopped": ("info", "Everything is closed."),
    # Requests
    "api.notification.processed": ("debug", "A notification was stored."),
    "api.watch.stream.established": ("info", "A watch was opened."),
    "api.replay.stream.established": ("info", "A replay was opened."),
    "api.schema.list.succeeded": ("debug", "All schemas were asked for."),
    "api.schema.get.succeeded": ("debug", "One schema was asked for."),
    "api.request.malformed": ("warn", "What came was not HTTP, or its headers were too large."),
    "api.request.parse.failed": ("warn", "The body is not a request."),
    "api.request.validation.failed": ("warn", "The request is not acceptable."),
    "api.request.limit.reached": ("warn", "A limit was reached; `limit` names it."),
    "api.request.processing.failed": ("error", "The server could not do what was asked."),
    # Streams
    "stream.sse.initialization.failed": ("error", "A stream could not be opened."),
    "stream.replay.batch.failed": ("error", "History could not be read; the stream was closed with an error."),
    "stream.live.lost": ("error", "The log cannot feed live streams any longer; they were closed."),
    "stream.live.failed": ("error", "Handing on new notifications failed; the streams were closed."),
    "stream.live.overrun": ("warn", "More waited for delivery than memory should hold; watchers read from the log."),
    "stream.heartbeat.failed": ("error", "A heartbeat could not be sent."),
    "stream.watcher.lagged": ("warn", "A watcher fell behind what the log keeps and was closed."),
    # Administration
    "admin.stream.wipe.requested": ("info", "Somebody wants a stream emptied."),
    "admin.stream.wipe.succeeded": ("info", "A stream was emptied."),
    "admin.stream.wipe.not_found": ("warn", "The stream to be emptied does not exist."),
    "admin.stream.wipe.failed": ("error", "A stream could not be emptied."),
    "admin.all.wipe.requested": ("info", "Somebody wants all streams emptied."),
    "admin.all.wipe.succeeded": ("info", "All streams were emptied."),
    "admin.all.wipe.failed": ("error", "Not all streams could be emptied."),
    "admin.notification.delete.succeeded": ("info", "A notification was removed."),
    "admin.notification.delete.not_found": ("warn", "The notification to be removed does not exist."),
    "admin.notification.delete.invalid_id": ("warn", "The id of the notification to be removed makes no sense."),
    "admin.notification.delete.failed": ("error", "A notification could not be removed."),
    # Who may
    "auth.middleware.request.denied": ("info", "A request was refused with 401, 403 or 503."),
    "auth.middleware.remote.validation.failed": ("warn", "The authentication service or the key server did not help."),
    "auth.ecpds.check.allowed": ("info", "ECPDS lets a user read about a destination."),
    "auth.ecpds.check.denied": ("info", "ECPDS does not let a user read about a destination."),
    "auth.ecpds.check.unavailable": ("info", "ECPDS could not be asked; the request was refused."),
    "auth.ecpds.check.error": ("info", "A destination check failed; the request was refused."),
    "auth.ecpds.fetch.failed": ("warn", "One ECPDS server did not help."),
    # Logs
    "backend.sqlite.write.failed": ("error", "The log cannot be written; publishing is refused."),
    "backend.sqlite.write.recovered": ("warn", "The log can be written again."),
    "backend.sqlite.rollback.failed": ("warn", "A failed write could not be undone at once."),
    "backend.sqlite.retention.waiting": ("warn", "The log holds more than its policy says: the archive is behind."),
    "backend.sqlite.retention.resumed": ("warn", "The archive has caught up; the log keeps to its policy again."),
    "backend.in_memory.topic.evicted": ("debug", "A topic left to make room for another."),
    "backend.jetstream.durability.weak": ("warn", "A setting makes an acknowledgement worth less."),
    "backend.jetstream.connection.retry": ("warn", "The broker did not answer; it is asked again."),
    "backend.jetstream.connection.lost": ("warn", "The connection to the broker was lost."),
    "backend.jetstream.connection.restored": ("info", "The broker is back."),
    "backend.jetstream.connection.failed": ("error", "The broker stays away."),
    "backend.jetstream.connection.error": ("warn", "The client of the broker reports an error."),
    "backend.jetstream.publish.retry": ("warn", "A notification is sent to the broker again."),
    "backend.jetstream.keys.unsettled": ("warn", "What was stored under a key was not noted; a repetition finds it."),
    "backend.jetstream.subscription.failed": ("error", "A stream cannot be followed any longer."),
    "backend.jetstream.stream.missing": ("error", "A stream is not what it was."),
    "backend.jetstream.stream.deleted": ("error", "A stream was deleted behind our back and was made again."),
    "backend.jetstream.stream.create.succeeded": ("info", "A stream was made."),
    "backend.jetstream.stream.reconcile.succeeded": ("info", "A stream was brought in line with the configuration."),
    "backend.jetstream.stream.reconcile.failed": ("warn", "A stream could not be brought in line."),
    # The archive
    "archive.process.running": ("info", "Spark is up; the archive is filled and can be read."),
    "archive.process.ended": ("warn", "The pipeline process ended by itself; it is started again."),
    "archive.process.impossible": ("error", "Spark cannot run here; the server goes on without an archive."),
    "archive.process.said": ("debug", "The pipeline process wrote to its error output."),
    "archive.process.silent": ("debug", "The pipeline process did not answer."),
    "archive.job.failed": ("warn", "The archive job reports an error."),
    "archive.job.waiting": ("warn", "The archive job cannot go on now; it tries again."),
    "archive.compaction.failed": ("warn", "Small files could not be merged; that is tried again."),
    "archive.repair.failed": ("warn", "What an audit wanted to be mended could not be."),
    "archive.audit.unreadable": ("warn", "The verdict of the last audit cannot be read."),
    "archive.bridge.failed": ("error", "The pipeline process could not answer the server."),
    "archive.files.unreadable": ("warn", "The folder of the archive, or what was known of it, could not be used."),
    "archive.numbering.advanced": ("warn", "The log was behind the archive; its numbering goes on after it."),
    "archive.numbering.refused": ("error", "The log is behind the archive and cannot go on after it."),
    "archive.removal.refused": ("warn", "The archive did not take a delete or a wipe; it is told again."),
    "archive.quarantine.unreadable": ("warn", "A table with rows that a load has refused cannot be read."),
    "insight.failed": ("warn", "Insight could not be brought up to date; that is tried again."),
    # Metrics
    "metrics.log.unavailable": ("debug", "A scrape got no answer from the log."),
}
"""All events by name."""
