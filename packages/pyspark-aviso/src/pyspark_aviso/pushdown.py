"""What Spark filters become in a replay request.

Everything here may keep more than the filters ask for, because Spark looks at the rows again, but never less: what the
server cannot be asked for exactly, or might refuse, is left to Spark. What a text means is the server's to say: all but
listed values are asked about before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from pyspark_aviso.client import Column, EventType, Field

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["Pushed", "push"]

_MOST_CHOICES = 1000
_MICROSECOND = 1000  # nanoseconds: Spark knows no shorter time


@dataclass(frozen=True)
class Pushed:
    """What can be asked of the server for one event type."""

    identifier: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # of fields, if the server looks for exactly these
    from_sequence: int | None = None
    to_sequence: int | None = None
    from_time: int | None = None  # nanoseconds since 1970
    to_time: int | None = None
    nothing: bool = False  # no row can pass the filters


class _Limits:
    """What all filters on one column leave: a closed interval, and a set of values if there is one."""

    def __init__(self) -> None:
        self.low: Any = None
        self.high: Any = None
        self.choices: set[Any] | None = None

    def choose(self, values: Iterable[Any]) -> None:
        self.choices = set(values) if self.choices is None else self.choices & set(values)

    def raise_low(self, value: Any) -> None:
        self.low = value if self.low is None else max(self.low, value)

    def lower_high(self, value: Any) -> None:
        self.high = value if self.high is None else min(self.high, value)

    def allowed(self) -> list[Any]:
        """Return the values of the set that lie in the interval."""
        return sorted(
            value
            for value in self.choices or ()
            if (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        )

    @property
    def empty(self) -> bool:
        """Return whether no value is left."""
        if self.choices is not None:
            return not self.allowed()
        return self.low is not None and self.high is not None and bool(self.low > self.high)

    @property
    def interval(self) -> tuple[Any, Any]:
        """Return the smallest and the largest value; None where there is no limit."""
        if self.choices is not None:
            allowed = self.allowed()
            return allowed[0], allowed[-1]
        return self.low, self.high


def push(filters: Sequence[Filter], event_type: EventType, table: Sequence[Column], given: Mapping[str, Any]) -> Pushed:
    """Return what the filters mean for one event type.

    `table` has the columns that Spark sees, `given` is the identifier that the user set: its fields stay as they are.
    """
    seen = {column.name: column for column in table}
    own = {column.name.lower(): column for column in event_type.columns}
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
    names = limits.get("event_type", _Limits()).choices
    if any(found.empty for found in limits.values()) or (names is not None and event_type.name not in names):
        return Pushed(nothing=True)
    identifier, texts = dict[str, Any](), dict[str, str]()
    for column in own.values():
        if column.field is None or column.field in given or column.name not in limits:
            continue
        rules, found = event_type.fields[column.field], limits[column.name]
        constraint = _constraint(rules, found)
        if constraint is not None:
            identifier[column.field] = constraint
        elif column.kind == "text" and not rules.values and found.choices is not None and len(found.choices) == 1:
            [texts[column.field]] = found.choices
    from_sequence, to_sequence = limits.get("sequence", _Limits()).interval
    from_time, to_time = limits.get("time", _Limits()).interval
    if to_time is not None:
        to_time += _MICROSECOND - 1  # Spark does not see the nanoseconds
    return Pushed(identifier, texts, from_sequence, to_sequence, from_time, to_time)


def _needs_value(each: Filter) -> bool:
    """Return whether a null never passes."""
    return not isinstance(each, spark.IsNull | spark.Not | spark.EqualNullSafe)


def _narrow(limits: _Limits, each: Filter, column: Column) -> None:
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
    """Return the value as something to compare with; None if it is not of the column's kind."""
    if column.kind == "integer" and type(value) is int:
        return value
    if column.kind == "number" and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if column.kind == "text" and type(value) is str:
        return value
    if column.kind == "instant" and isinstance(value, datetime) and value.tzinfo is not None:
        elapsed = value - datetime.fromtimestamp(0, value.tzinfo)
        return ((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds) * _MICROSECOND
    return None


def _next(value: Any, column: Column, direction: int) -> Any:
    """Return the next value of the column's kind, so that every interval can be a closed one."""
    if column.kind == "number":
        return math.nextafter(value, direction * math.inf)
    return value + direction * (_MICROSECOND if column.kind == "instant" else 1)


def _constraint(rules: Field, limits: _Limits) -> Any:
    """Return what to send for a field of numbers or listed values; None if the server should not be asked."""
    numbers = rules.kind in ("integer", "number")
    if limits.choices is not None:
        values = limits.allowed()
        listed = {value.lower() for value in rules.values}
        sure = all(_inside(rules, value) if numbers else value in listed for value in values)
        if not sure or len(values) > _MOST_CHOICES:
            return None
        return {"eq": values[0]} if len(values) == 1 else {"in": values}
    if not numbers:
        return None
    # A bound outside of the field's range would be refused. It is not drawn in to the range, because the range may
    # have been another one when older notifications came in.
    low, high = (bound if _inside(rules, bound) else None for bound in (limits.low, limits.high))
    if low is not None and high is not None:
        return {"between": [low, high]}
    if low is not None:
        return {"gte": low}
    return None if high is None else {"lte": high}


def _inside(rules: Field, value: Any) -> bool:
    if value is None or (rules.kind == "integer" and not -(2**63) <= value < 2**63):
        return False
    return rules.range is None or rules.range[0] <= value <= rules.range[1]
