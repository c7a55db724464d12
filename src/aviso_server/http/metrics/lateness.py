"""The numbers of the watch over late notifications; zeros for event types that are not watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from aviso_server.http.service import Service
from aviso_server.model.lateness.notice import Status

__all__ = ["lateness_samples"]

Sample = tuple[Sequence[str], float]


def lateness_samples(service: Service) -> Iterator[tuple[str, list[Sample]]]:
    """Every series of the watch with its samples."""
    watch = service.lateness
    names = service.catalogue.event_types
    judges = {} if watch is None else watch.judges
    watching = {name: judges[name].watching if name in judges else 0 for name in names}
    overdue = {name: len(judges[name].overdue) if name in judges else 0 for name in names}
    yield "aviso_lateness_watched", [([name], count) for name, count in watching.items()]
    yield "aviso_lateness_overdue", [([name], count) for name, count in overdue.items()]
    alarms: list[Sample] = [
        ([name, status], 0 if watch is None else watch.published[name, status])
        for name in names
        for status in get_args(Status)
    ]
    yield "aviso_lateness_alarms_total", alarms
