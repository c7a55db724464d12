"""The notifications of event type `aviso_lateness`: something expected is overdue, or has arrived after all."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from aviso_server.model.fields.date import DateField
from aviso_server.model.fields.enum import EnumField
from aviso_server.model.fields.string import StringField
from aviso_server.model.lateness.watched import day_text
from aviso_server.model.notification import Draft
from aviso_server.model.schema import EventType
from aviso_server.model.timestamp import seconds_text

__all__ = ["EVENT_TYPE", "NAME", "Notice", "Status"]

NAME = "aviso_lateness"
"""The event type and its stream: nobody else may use this name."""

Status = Literal["overdue", "arrived"]

EVENT_TYPE = EventType(
    name=NAME,
    fields={
        "expected_event": StringField(required=False, description="The event type that is late"),
        "combination": StringField(
            required=False, description="What of it is late: identifier fields and values, such as class=od,step=24"
        ),
        "date": DateField(required=False, description="The day that it belongs to"),
        "status": EnumField(required=False, values=("overdue", "arrived"), description="Overdue, or there after all"),
        "expected_at": StringField(required=False, description="When it usually arrives"),
    },
    base=NAME,
    key_order=("expected_event", "status", "date", "combination"),
    payload_required=False,
)
"""Built in, and there as soon as one event type is watched."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One of them; times are seconds since 1970."""

    event_type: str
    combination: str
    values: dict[str, str]
    day: int
    status: Status
    expected_at: int
    overdue_at: int
    spread: int
    seen: int
    arrived_at: int | None = None
    sequence: int | None = None  # of the notification that has arrived

    def draft(self) -> Draft:
        """As it is published."""
        identifier = {
            "expected_event": self.event_type,
            "combination": self.combination,
            "date": day_text(self.day),
            "status": self.status,
            "expected_at": seconds_text(self.expected_at),
        }
        payload: dict[str, Any] = {
            "identifier": self.values,
            "expected_at": seconds_text(self.expected_at),
            "overdue_at": seconds_text(self.overdue_at),
            "spread_seconds": self.spread,
            "seen_days": self.seen,
        }
        if self.arrived_at is not None:
            payload["arrived_at"] = seconds_text(self.arrived_at)
            payload["late_by_seconds"] = self.arrived_at - self.expected_at
            payload["id"] = f"{self.event_type}@{self.sequence}"
        return EVENT_TYPE.check(identifier, payload)
