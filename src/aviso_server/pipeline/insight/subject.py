"""What there is to count in a stream, as its event type says."""

from __future__ import annotations

import msgspec

from aviso_server.insight.tables import VALUES
from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.fields.date import DateField
from aviso_server.model.fields.integer import IntField
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.fields.time import TimeField
from aviso_server.model.schema import EventType, GenericType

__all__ = ["Subject", "subject_of"]

_VERSION = 1  # of the rules by which rows become tables


class Subject(msgspec.Struct, frozen=True):
    """A stream and the fields that matter."""

    stream: str
    event_type: str
    fields: tuple[str, ...] | None  # whose values are counted; None: whatever an identifier has
    date: str | None = None  # the fields that make up the nominal time
    time: str | None = None
    step: str | None = None
    polygon: bool = False
    points: str | None = None  # the field with the points

    @property
    def rules(self) -> str:
        """Stands for how rows are made: with other rules all of them have to be made anew."""
        return msgspec.json.encode([_VERSION, VALUES, self]).decode()


def subject_of(stream: str, event_type: EventType | GenericType) -> Subject:
    """What to count in a stream of this event type.

    The nominal time comes from the field `date` (or the first DateHandler), the field `time` (or the first
    TimeHandler) and an IntHandler named `step`, in hours. Without a date there is none.
    """
    if isinstance(event_type, GenericType):
        return Subject(stream, event_type.name, None)
    fields = event_type.fields
    step = "step" if isinstance(fields.get("step"), IntField) else None
    points = [name for name, field in fields.items() if isinstance(field, PointCloudField)]
    shapes = [name for name, field in fields.items() if isinstance(field, SpatialField)]
    date = _one("date", DateField, fields)
    return Subject(
        stream,
        event_type.name,
        tuple(name for name in fields if name not in shapes),
        date,
        _one("time", TimeField, fields) if date else None,
        step if date else None,
        polygon=bool(shapes) and not points,
        points=points[0] if points else None,
    )


def _one(name: str, kind: type[Field], fields: dict[str, Field]) -> str | None:
    if isinstance(fields.get(name), kind):
        return name
    return next((each for each, field in fields.items() if isinstance(field, kind)), None)
