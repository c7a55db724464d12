"""What Spark filters become in a replay request.

Everything here may keep more than the filters ask for, because Spark looks at the rows again, but never less: what the
server cannot be asked for exactly, or might refuse, is left to Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql import datasource as spark

from aviso_server.errors import InvalidRequest
from aviso_server.model import topic
from aviso_server.model.columns import Column, columns_of
from aviso_server.model.fields import Field
from aviso_server.model.fields.float import FloatField
from aviso_server.model.fields.integer import IntField
from aviso_server.model.schema import GenericType
from aviso_server.pipeline.catalogue import AnyType

__all__ = ["Pushed", "push"]

_MOST_CHOICES = 1000
_MICROSECOND = 1000  # nanoseconds: Spark knows no shorter time


class Pushed(msgspec.Struct, frozen=True):
    """What can be asked of the server for one event type."""

    identifier: dict[str, Any] = {}
    from_sequence: int | None = None
    to_sequence: int | None = None
    from_time: int | None = None  # nanoseconds since 1970
    to_time: int | None = None
    nothing: bool = False  # no row can pass the filters


class _Limits(msgspec.Struct):
    """What all filters on one column leave: a closed interval, and a set of values if there is one."""

    low: Any = None
    high: Any = None
    choices: set[Any] | None = None

    def choose(self, values: Iterable[Any]) -> None:
        self.choices = set(values) if self.choices is None else self.choices & set(values)

    def raise_low(self, value: Any) -> None:
        self.low = value if self.low is None else max(self.low, value)

    def lower_high(self, value: Any) -> None:
        self.high = value if self.high is None else min(self.high, value)

    def allowed(self) -> list[Any]:
        """The values of the set that lie in the interval."""
        return sorted(
            value
            for value in self.choices or ()
            if (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        )

    @property
    def empty(self) -> bool:
        """True if no value is left."""
        if self.choices is not None:
            return not self.allowed()
        return self.low is not None and self.high is not None and bool(self.low > self.high)


def push(
    filters: Sequence[spark.Filter],
    name: str,
    event_type: AnyType,
    table: Sequence[Column],
    given: Mapping[str, Any],
) -> Pushed:
    """What the filters mean for one event type.

    `table` has the columns that Spark sees, `given` is the identifier that the user set: its fields stay as they are.
    """
    seen = {column.name: column for column in table}
    own = {column.name.lower(): column for column in columns_of(event_type)}
    limits: dict[str, _Limits] = {}
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        column = seen.get(attribute[0]) if len(attribute) == 1 else None
        if column is None:
            continue
        mine = own.get(column.name.lower())
        if mine is None and column.field is not None and _needs_value(each):
            return Pushed(nothing=True)  # the column is null in every row of this event type
        if mine is not None and mine.kind == column.kind:
            _narrow(limits.setdefault(mine.name, _Limits()), each, mine)
    if any(found.empty for found in limits.values()):
        return Pushed(nothing=True)
    if not _admits(limits.get("event_type"), name):
        return Pushed(nothing=True)
    fields = {} if isinstance(event_type, GenericType) else event_type.fields
    identifier = {}
    for column in own.values():
        if column.field is None or column.field in given or column.name not in limits:
            continue
        constraint = _constraint(column.field, fields[column.field], limits[column.name])
        if constraint is not None:
            identifier[column.field] = constraint
    from_sequence, to_sequence = _interval(limits.get("sequence", _Limits()))
    from_time, to_time = _interval(limits.get("time", _Limits()))
    return Pushed(
        identifier,
        from_sequence,
        to_sequence,
        from_time,
        None if to_time is None else to_time + _MICROSECOND - 1,  # Spark does not see the nanoseconds
    )


def _needs_value(each: spark.Filter) -> bool:
    """True if a null never passes."""
    return not isinstance(each, spark.IsNull | spark.Not | spark.EqualNullSafe)


def _narrow(limits: _Limits, each: spark.Filter, column: Column) -> None:
    if isinstance(each, spark.In):
        values = [_operand(value, column) for value in each.value if value is not None]
        if None not in values:
            limits.choose(values)
        return
    value = _operand(getattr(each, "value", None), column)
    if value is None:
        return
    if isinstance(each, spark.EqualTo | spark.EqualNullSafe):
        limits.choose([value])
    elif column.kind == "text":
        return
    elif isinstance(each, spark.GreaterThanOrEqual):
        limits.raise_low(value)
    elif isinstance(each, spark.LessThanOrEqual):
        limits.lower_high(value)
    elif isinstance(each, spark.GreaterThan):
        limits.raise_low(_next(value, column, 1))
    elif isinstance(each, spark.LessThan):
        limits.lower_high(_next(value, column, -1))


def _operand(value: Any, column: Column) -> Any:
    """The value as something to compare with; None if it is not of the column's kind."""
    if column.kind == "integer" and type(value) is int:
        return value
    if column.kind == "number" and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if column.kind == "text" and type(value) is str:
        return value
    if column.kind == "instant" and isinstance(value, datetime) and value.tzinfo is not None:
        return _nanoseconds(value)
    return None


def _nanoseconds(moment: datetime) -> int:
    elapsed = moment - datetime.fromtimestamp(0, moment.tzinfo)
    return ((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds) * _MICROSECOND


def _next(value: Any, column: Column, direction: int) -> Any:
    """The next value of the column's kind, so that every interval can be a closed one."""
    if column.kind == "number":
        return math.nextafter(value, direction * math.inf)
    return value + direction * (_MICROSECOND if column.kind == "instant" else 1)


def _admits(limits: _Limits | None, value: str) -> bool:
    return limits is None or limits.choices is None or value in limits.choices


def _interval(limits: _Limits) -> tuple[int | None, int | None]:
    if limits.choices is not None:
        allowed = limits.allowed()
        return allowed[0], allowed[-1]
    return limits.low, limits.high


def _constraint(name: str, field: Field, limits: _Limits) -> Any:
    """What to send for a field; None if the server should not be asked."""
    if limits.choices is not None:
        return _choice(name, field, limits.allowed())
    if not isinstance(field, IntField | FloatField):
        return None
    # A bound outside of the field's range would be refused. It is not drawn in to the range, because the range may
    # have been another one when older notifications came in.
    low, high = (None if _outside(field, bound) else bound for bound in (limits.low, limits.high))
    if low is not None and high is not None:
        return {"between": [low, high]}
    if low is not None:
        return {"gte": low}
    return None if high is None else {"lte": high}


def _choice(name: str, field: Field, values: list[Any]) -> Any:
    if len(values) > _MOST_CHOICES:
        return None
    if isinstance(field, IntField | FloatField):
        if any(_outside(field, value) for value in values):
            return None
    elif not all(_is_canonical(name, field, value) for value in values):
        return None
    if "in" in field.operators:
        return {"eq": values[0]} if len(values) == 1 else {"in": values}
    return values[0] if len(values) == 1 else None


def _outside(field: IntField | FloatField, value: Any) -> bool:
    if value is None:
        return True
    if isinstance(field, IntField) and not -(2**63) <= value < 2**63:
        return True
    return field.range is not None and not field.range[0] <= value <= field.range[1]


def _is_canonical(name: str, field: Field, text: str) -> bool:
    """True if the server would look for exactly this text; a wildcard would look for all."""
    try:
        return text != topic.WILDCARD and field.canonical(name, text) == text
    except InvalidRequest:
        return False
