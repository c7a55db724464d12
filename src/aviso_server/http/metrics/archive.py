"""The numbers of the archive; zeros on a server without one, so that rates and alerts work from the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from aviso_server.archive.supervisor import State
from aviso_server.http.service import Service
from aviso_server.log.base import StreamState, Waiting
from aviso_server.model.timestamp import SECOND, parse_instant

__all__ = ["archive_samples"]

Sample = tuple[Sequence[str], float]

_PROCESS_STATES = ("off", *get_args(State))
_JOB_STATES = ("off", "starting", "running", "waiting", "stopped")
_VERDICTS = ("none", "clean", "defects", "unchecked")


def archive_samples(service: Service, streams: Mapping[str, StreamState]) -> Iterator[tuple[str, list[Sample]]]:
    """Every series of the archive with its samples; `streams` is what the log holds, by event type."""
    lake = service.archive
    process = "off" if lake is None else lake.supervisor.state
    job = "off" if lake is None else lake.job.state
    yield "aviso_archive_process_state", [([state], state == process) for state in _PROCESS_STATES]
    yield "aviso_archive_job_state", [([state], state == job) for state in _JOB_STATES]
    yield "aviso_archive_restarts_total", [((), 0 if lake is None else lake.supervisor.restarts)]
    yield "aviso_archive_errors_total", [((), 0 if lake is None else lake.errors)]
    yield "aviso_archive_last_error_timestamp_seconds", [((), 0 if lake is None else lake.last_error_at)]
    yield "aviso_archive_replays_active", [((), 0 if lake is None else lake.slots.taken)]
    yield "aviso_archive_replays_waiting", [((), 0 if lake is None else lake.slots.waiting)]
    yield "aviso_archive_removals_pending", [((), 0 if lake is None else len(lake.journal.pending))]
    yield from _audit_samples(service)
    archived = {
        name: 0 if lake is None else lake.watermark(event_type.base)
        for name, event_type in service.catalogue.event_types.items()
    }
    lag = {
        name: max(0, streams[name].last - last) if lake is not None and name in streams else 0
        for name, last in archived.items()
    }
    yield "aviso_archive_last_sequence", [([name], last) for name, last in archived.items()]
    yield "aviso_archive_lag", [([name], count) for name, count in lag.items()]
    held_back = service.log.held_back if isinstance(service.log, Waiting) else frozenset[str]()
    late = {service.label_of_stream(stream) for stream in held_back}
    yield "aviso_log_held_back", [([name], name in late) for name in streams]


def _audit_samples(service: Service) -> Iterator[tuple[str, list[Sample]]]:
    """What the last audit found."""
    lake = service.archive
    summary = None if lake is None or lake.audited is None else lake.audited.summary
    verdict = "none" if summary is None else summary.verdict
    yield "aviso_audit_verdict", [([each], each == verdict) for each in _VERDICTS]
    yield "aviso_audit_timestamp_seconds", [((), 0 if summary is None else parse_instant("at", summary.at) / SECOND)]
    streams = {} if summary is None else summary.streams
    defects = {
        name: streams[event_type.base].defects if event_type.base in streams else 0
        for name, event_type in service.catalogue.event_types.items()
    }
    yield "aviso_audit_defects", [([name], count) for name, count in defects.items()]
