"""What a consumer has delivered, as columns where that can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aviso_server.log.jetstream.parser import Plain
from aviso_server.model.notification import Notification
from aviso_server.model.run import Run

if TYPE_CHECKING:
    from aviso_server.model.arrow_run import ArrowRun

__all__ = ["last_of", "notifications_of"]


def notifications_of(found: Sequence[Plain | Notification]) -> Sequence[Notification]:
    """The notifications in their order: a run if all are of the usual kind."""
    plain = [each for each in found if isinstance(each, tuple)]
    if len(plain) == len(found):
        return _run_of(plain)
    return [_notification_of(each) if isinstance(each, tuple) else each for each in found]


def last_of(found: Sequence[Notification]) -> int:
    """The sequence of the newest of some notifications."""
    return found.last if isinstance(found, Run) else found[-1].sequence


def _run_of(plain: Sequence[Plain]) -> ArrowRun:
    import pyarrow as pa  # large: commands that read nothing do not wait for it

    from aviso_server.model.arrow_run import ArrowRun

    sequences, times, subjects, identifiers, payloads = zip(*plain, strict=True)
    return ArrowRun(
        pa.array(sequences, pa.binary()),
        pa.array(times, pa.binary()),
        lambda: list(map(_topic_of, subjects)),
        pa.array(identifiers, pa.binary()),
        pa.array(payloads, pa.binary()),
    )


def _notification_of(plain: Plain) -> Notification:
    sequence, time, subject, identifier, payload = plain
    return Notification(int(sequence), int(time), _topic_of(subject), identifier, payload)


def _topic_of(subject: bytes) -> str:
    return subject.decode("utf-8", "replace")
