"""Identifier fields and constraints on them; a new field type is a class and a line in FIELD_TYPES."""

from __future__ import annotations

import math
import re
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Literal

import msgspec

from aviso_server.errors import InvalidRequest, PolygonTooLarge, Problem
from aviso_server.model import shapes
from aviso_server.model.json_text import NUMBER, check_length, identifier_text, parse, quoted, shortest
from aviso_server.model.shapes import MAX_LAT, MAX_LON, PointCloud, Polygon

__all__ = [
    "COMPARISONS",
    "FIELD_TYPES",
    "MEMBERSHIP",
    "PAIR_SCHEMA",
    "Constraint",
    "DateField",
    "EnumField",
    "ExpverField",
    "Field",
    "FloatField",
    "IntField",
    "Kind",
    "Operand",
    "PointCloudField",
    "PolygonField",
    "SpatialField",
    "StringField",
    "TimeField",
    "constraint_schema",
    "read_constraint",
    "read_polygon",
]

Kind = Literal["integer", "number", "text"]
Operand = int | float | str

MEMBERSHIP = ("eq", "in")
COMPARISONS = ("eq", "in", "gt", "gte", "lt", "lte", "between")


class Constraint(msgspec.Struct, frozen=True):
    """One operator with its operands, tested against the value of a field."""

    kind: Kind
    operator: str
    operands: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        operands = self.operands
        match self.operator:
            case "eq":
                return bool(value == operands[0])
            case "in":
                return value in operands
            case "gt":
                return bool(value > operands[0])
            case "gte":
                return bool(value >= operands[0])
            case "lt":
                return bool(value < operands[0])
            case "lte":
                return bool(value <= operands[0])
            case _:
                return bool(operands[0] <= value <= operands[1])

    def interval(self) -> tuple[float, float]:
        """Return a closed interval that all satisfying numbers lie in; it may be wider than needed."""
        low, high = float("-inf"), float("inf")
        if self.operator in ("gt", "gte"):
            return float(self.operands[0]), high
        if self.operator in ("lt", "lte"):
            return low, float(self.operands[0])
        return float(min(self.operands)), float(max(self.operands))

    def __str__(self) -> str:
        shown = self.operands[0] if self.operator not in ("in", "between") else list(self.operands)
        return f"{self.operator} {shown}"


def read_constraint(name: str, kind: Kind, operators: tuple[str, ...], request: dict[str, Any]) -> Constraint:
    """Read a constraint object of a request; InvalidRequest names the field and what is accepted.

    The operands are checked for their JSON type here; whether they lie in the field's range is the field's business.
    """
    accepted = ", ".join(operators)
    if not operators:
        raise InvalidRequest(f"Field '{name}' does not support constraint objects; send a single value", field=name)
    if len(request) != 1:
        raise InvalidRequest(
            f"Field '{name}': a constraint object must contain exactly one operator ({accepted}); got {len(request)}",
            field=name,
        )
    ((operator, operand),) = request.items()
    if operator not in operators:
        raise InvalidRequest(
            f"Field '{name}': unknown constraint operator {quoted(operator)}; accepted: {accepted}", field=name
        )
    if operator == "in":
        if type(operand) is not list or not operand:
            raise InvalidRequest(f"Field '{name}': 'in' expects a non-empty array of {_NOUNS[kind]}", field=name)
        return Constraint(kind, operator, tuple([_operand(name, operator, kind, item) for item in operand]))
    if operator == "between":
        if type(operand) is not list or len(operand) != 2:
            raise InvalidRequest(f"Field '{name}': 'between' expects exactly two values [min, max]", field=name)
        low, high = (_operand(name, operator, kind, item) for item in operand)
        if low > high:  # type: ignore[operator]  # both have the type that kind says
            raise InvalidRequest(f"Field '{name}': 'between' expects min <= max; got [{low}, {high}]", field=name)
        return Constraint(kind, operator, (low, high))
    return Constraint(kind, operator, (_operand(name, operator, kind, operand),))


def constraint_schema(operators: tuple[str, ...], operand: dict[str, Any]) -> dict[str, Any]:
    """Build a JSON schema of the constraint objects with these operators."""
    shapes: dict[str, Any] = {
        "in": {"type": "array", "items": operand, "minItems": 1},
        "between": {"type": "array", "items": operand, "minItems": 2, "maxItems": 2},
    }
    return {
        "type": "object",
        "description": f"A constraint: exactly one operator out of {', '.join(operators)}.",
        "properties": {operator: shapes.get(operator, operand) for operator in operators},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }


_MOST_SHOWN = 80
_NOUNS = {"integer": "integers", "number": "numbers", "text": "strings"}


def _operand(name: str, operator: str, kind: Kind, value: object) -> Operand:
    # bool is a subclass of int, hence the exact types
    if kind == "integer" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind == "number" and (type(value) is float or type(value) is int):
        return float(value)  # compared as it is stored: as a double
    if kind == "text" and type(value) is str:
        return value.lower()
    raise InvalidRequest(
        f"Field '{name}': operator '{operator}' expects {_NOUNS[kind]}; got {_shown(value)}", field=name
    )


def _shown(value: object) -> str:
    """Write a value as JSON for an error message, of a long one only the start."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


PAIR_SCHEMA = {
    "type": "array",
    "prefixItems": [
        {"type": "number", "minimum": -MAX_LAT, "maximum": MAX_LAT},
        {"type": "number", "minimum": -MAX_LON, "maximum": MAX_LON},
    ],
    "minItems": 2,
    "maxItems": 2,
}
"""A JSON schema of [lat, lon]."""


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An identifier field of an event type: what it accepts and what it makes of it.

    The members of a subclass are the parameters of the field in a configuration file; their descriptions in
    the schema route, the OpenAPI document and the docs come from here.
    """

    required: bool
    description: str | None = None

    type_name: ClassVar[str]
    """The name under `type` in a configuration file."""
    accepts: ClassVar[str]
    """The accepted values, in words for people."""
    example: ClassVar[Any]
    """A value that a field without further limits accepts."""
    operators: ClassVar[tuple[str, ...]] = ()
    """The constraint operators that watch and replay may use on it."""
    kind: ClassVar[Kind] = "text"
    """The type that canonical texts are compared as, and the type of the column in Spark."""
    wildcard: ClassVar[bool] = False
    """True if the text `*` matches any value on watch and replay."""

    def canonical(self, name: str, text: str) -> str:
        """Return the one text that stands for this value everywhere; InvalidRequest if it is not acceptable."""
        raise NotImplementedError

    def accept(self, name: str, value: object) -> str:
        """Return the canonical text of a JSON value as a publisher sent it."""
        return self.canonical(name, value if type(value) is str else identifier_text(name, value))

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        """Read a constraint object of a watch or replay request and check its operands against this field."""
        return read_constraint(name, self.kind, self.operators, request)

    def problem(self) -> Problem | None:
        """Return what is wrong with the parameters, under the name of one of them; None if they are fine."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return the field as the schema route shows it: flat, unset parameters as null, no empty description."""
        shown: dict[str, Any] = {"type": self.type_name, **msgspec.structs.asdict(self)}
        if self.description is None:
            del shown["description"]
        return shown

    def sample(self) -> Any:
        """Return a value that this very field accepts."""
        return self.example

    def json_schema(self) -> dict[str, Any]:
        """Build a JSON schema that every acceptable published value satisfies, with words and an example."""
        words = "" if not self.description else self.description.rstrip(". ") + ". "
        return {"description": f"{words}Accepts {self.accepts}.", "examples": [self.sample()], **self.value_schema()}

    def filter_schema(self) -> dict[str, Any]:
        """Build a JSON schema that every acceptable value of a watch or replay request satisfies."""
        if not self.operators:
            return self.json_schema()
        return {"anyOf": [self.json_schema(), constraint_schema(self.operators, self.operand_schema())]}

    def value_schema(self) -> dict[str, Any]:
        """Build the bare JSON schema of a published value."""
        return {"type": ["string", "number", "boolean"]}

    def operand_schema(self) -> dict[str, Any]:
        """Build the JSON schema of what a constraint compares with."""
        return self.value_schema()


class SpatialField(Field, frozen=True, kw_only=True):
    """A field that says where a notification belongs on the map."""

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[bytes, Polygon | PointCloud]:
        """Return the field's canonical JSON, every number a float, and its shape."""
        raise NotImplementedError


class StringField(Field, frozen=True, kw_only=True):
    """Text that is kept as it is, with an optional limit in UTF-8 bytes."""

    max_length: int | None = None

    type_name: ClassVar[str] = "StringHandler"
    accepts: ClassVar[str] = "non-empty text of at most max_length UTF-8 bytes; kept unchanged"
    example: ClassVar[Any] = "enfo"
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        if not text:
            raise InvalidRequest(f"Field '{name}' must not be empty", field=name)
        limit = self.max_length
        if limit is not None and len(text) * 4 > limit and len(text.encode()) > limit:
            raise InvalidRequest(
                f"Field '{name}' exceeds maximum length of {limit} bytes: got {len(text.encode())}", field=name
            )
        return text

    def problem(self) -> Problem | None:
        if self.max_length is not None and self.max_length < 1:
            return Problem("max_length", f"{self.max_length} is out of range", "a whole number, 1 or more")
        return None

    def sample(self) -> str:
        return str(self.example)[: self.max_length]

    def value_schema(self) -> dict[str, Any]:
        """Limit characters, which are all that JSON schemas count; there are never more of them than bytes."""
        limit = {} if self.max_length is None else {"maxLength": self.max_length}
        return {"type": ["string", "number", "boolean"], "minLength": 1, **limit}


@lru_cache(maxsize=4096)
def _lowered(values: tuple[str, ...]) -> frozenset[str]:
    return frozenset(value.lower() for value in values)


class EnumField(Field, frozen=True, kw_only=True):
    """One of a list of words; letter case does not matter, the canonical form is lower case."""

    values: tuple[str, ...]

    type_name: ClassVar[str] = "EnumHandler"
    accepts: ClassVar[str] = "one of the listed values, in any letter case; kept in lower case"
    example: ClassVar[Any] = "north"
    operators: ClassVar[tuple[str, ...]] = MEMBERSHIP
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        lowered = text.lower()
        if lowered not in _lowered(self.values):
            raise InvalidRequest(
                f"Field '{name}' has invalid value {quoted(text)}. Allowed: [{', '.join(self.values)}]", field=name
            )
        return lowered

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        constraint = super().constraint(name, request)
        for operand in constraint.operands:
            self.canonical(name, operand)
        return constraint

    def sample(self) -> str:
        return next(iter(self.values), str(self.example))

    def value_schema(self) -> dict[str, Any]:
        """Allow numbers and truth values where one of the values looks like one."""
        lowered = _lowered(self.values)
        others = [{"type": "boolean"}] if lowered & {"true", "false"} else []
        if any(parse(value) is not None for value in lowered):
            others.append({"type": "number"})
        return {"anyOf": [*self._texts(), *others]}

    def operand_schema(self) -> dict[str, Any]:
        return {"anyOf": self._texts()}

    def _texts(self) -> list[dict[str, Any]]:
        if not self.values:
            return [{"not": {}}]
        return [{"enum": list(self.values)}, {"type": "string", "pattern": _any_case(self.values)}]


def _any_case(values: tuple[str, ...]) -> str:
    """Build a regular expression for the values in any letter case; JSON schemas have no flag for that."""
    if not all(value.isascii() for value in values):
        return "."
    return f"^(?:{'|'.join(''.join(map(_letter, value)) for value in values)})$"


def _letter(character: str) -> str:
    if not character.isalpha():
        return character if character.isalnum() else f"\\u{ord(character):04x}"
    kelvin = "\\u212a" if character in "kK" else ""  # the one other character whose lower case is ASCII
    return f"[{character.lower()}{character.upper()}{kelvin}]"


_UNSIGNED = re.compile(r"\+?[0-9]+")


class ExpverField(Field, frozen=True, kw_only=True):
    """An experiment version: a number padded to four digits, or a word in lower case."""

    default: str | None = None

    type_name: ClassVar[str] = "ExpverHandler"
    accepts: ClassVar[str] = (
        "a number up to 4294967295 (padded to four digits) or a word (lower-cased); empty text means the default"
    )
    example: ClassVar[Any] = "0001"
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        """Pad a number to four digits or lower a word; take the default for the empty text."""
        if not text:
            if not self.default:
                raise InvalidRequest(f"Field '{name}' must not be empty and has no default", field=name)
            text = self.default
        if _UNSIGNED.fullmatch(text):
            digits = text.lstrip("+").lstrip("0")
            if len(digits) <= 10 and int(digits or "0") < 2**32:
                return f"{digits:0>4}"
        return text.lower()

    def value_schema(self) -> dict[str, Any]:
        return {"type": ["string", "number", "boolean"], "minLength": 0 if self.default else 1}


_INTEGER = r"[+-]?[0-9]+"
_DIGITS = re.compile(_INTEGER)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_TOO_MANY_DIGITS = 20  # for 64 bits


class _NumberField(Field, frozen=True, kw_only=True):
    range: tuple[Any, Any] | None = None

    operators: ClassVar[tuple[str, ...]] = COMPARISONS

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        constraint = super().constraint(name, request)
        if self.range is not None:  # there may be a hundred thousand operands
            for operand in constraint.operands:
                self._check_range(name, operand, operand)
        return constraint

    def problem(self) -> Problem | None:
        if self.range is not None and not -math.inf < self.range[0] <= self.range[1] < math.inf:
            return Problem("range", f"{list(self.range)} is not a range", "[min, max] with min <= max, both finite")
        return None

    def sample(self) -> Any:
        low, high = self.range or (self.example, self.example)
        return type(self.example)(max(low, min(high, self.example)))

    def _check_range(self, name: str, number: float, shown: object) -> None:
        if self.range is not None and not self.range[0] <= number <= self.range[1]:
            low, high = self.range
            raise InvalidRequest(f"Field '{name}' value {shown} is outside allowed range [{low}, {high}]", field=name)


class IntField(_NumberField, frozen=True, kw_only=True):
    """A whole number of 64 bits, optionally within a range (limits included)."""

    range: tuple[int, int] | None = None

    type_name: ClassVar[str] = "IntHandler"
    accepts: ClassVar[str] = "a whole number of 64 bits, within range if one is given (limits included)"
    example: ClassVar[Any] = 6
    kind: ClassVar[Kind] = "integer"

    def canonical(self, name: str, text: str) -> str:
        """Drop the plus sign and leading zeros."""
        check_length(name, text, self.accepts)
        if not _DIGITS.fullmatch(text):
            raise InvalidRequest(
                f"Field '{name}' must be an integer; got {quoted(text)}",
                "expected decimal digits with an optional sign" if text else "the text is empty",
                field=name,
            )
        significant = text.lstrip("+-").lstrip("0")[:_TOO_MANY_DIGITS] or "0"
        number = -int(significant) if text[0] == "-" else int(significant)
        if not _LOWEST <= number <= _HIGHEST:
            raise InvalidRequest(
                f"Field '{name}' must be an integer of 64 bits; got {quoted(text)}",
                f"the number does not lie in [{_LOWEST}, {_HIGHEST}]",
                field=name,
            )
        self._check_range(name, number, number)
        return str(number)

    def value_schema(self) -> dict[str, Any]:
        return {**self.operand_schema(), "type": ["integer", "string"], "pattern": f"^{_INTEGER}$"}

    def operand_schema(self) -> dict[str, Any]:
        return {"type": "integer", **_limits(self.range or (_LOWEST, _HIGHEST))}


class FloatField(_NumberField, frozen=True, kw_only=True):
    """A finite number, optionally within a range (limits included)."""

    range: tuple[float, float] | None = None

    type_name: ClassVar[str] = "FloatHandler"
    accepts: ClassVar[str] = "a finite number, within range if one is given (limits included)"
    example: ClassVar[Any] = 42.5
    kind: ClassVar[Kind] = "number"

    def canonical(self, name: str, text: str) -> str:
        """Return the shortest decimal that reads back as the same number, without exponent."""
        check_length(name, text, self.accepts)
        number = parse(text)
        if number is None or not math.isfinite(number):
            reason = "expected a decimal number" if number is None else "the number is not finite"
            raise InvalidRequest(
                f"Field '{name}' must be a finite number; got {quoted(text)}",
                reason if text else "the text is empty",
                field=name,
            )
        text = shortest(number)
        self._check_range(name, number, text)
        return text

    def value_schema(self) -> dict[str, Any]:
        return {**self.operand_schema(), "type": ["number", "string"], "pattern": f"^{NUMBER}$"}

    def operand_schema(self) -> dict[str, Any]:
        return {"type": "number", **_limits(self.range)}


def _limits(limits: tuple[Any, Any] | None) -> dict[str, Any]:
    """Write a range as members of a JSON schema; they bind numbers only, not their text."""
    return {} if limits is None else {"minimum": limits[0], "maximum": limits[1]}


# Possessive digits: a group takes all it can and gives nothing back, so 202512 has no day.
_YEAR = r"\s*+(?P<year>[+-]\d++|\d{1,4}+)"
_CALENDAR = re.compile(_YEAR + r"-\s*+(?P<month>\d{1,2}+)-\s*+(?P<day>\d{1,2}+)", re.ASCII)
_COMPACT = re.compile(_YEAR + r"\s*+(?P<month>\d{1,2}+)\s*+(?P<day>\d{1,2}+)", re.ASCII)
_ORDINAL = re.compile(_YEAR + r"-\s*+(?P<ordinal>\d{1,3}+)", re.ASCII)

_FORMATS = ("%Y%m%d", "%Y-%m-%d")

# For JSON schemas, which know no possessive digits: every day that is accepted looks like this.
_MONTH, _DAY = r"(?:0?[1-9]|1[0-2])", r"(?:0?[1-9]|[12][0-9]|3[01])"
_ANY_DAY = rf"^\s*(?:\+[0-9]+|[0-9]{{1,4}})(?:-\s*{_MONTH}-\s*{_DAY}|\s*{_MONTH}\s*{_DAY}|-\s*[0-9]{{1,3}})$"
_FIRST_NUMBER, _LAST_NUMBER = 1000101, 99991231  # 1000-10-1 and 9999-12-31


class DateField(Field, frozen=True, kw_only=True):
    """A day, written as 2025-12-25, 20251225 or 2025-359 (day of the year)."""

    canonical_format: str = "%Y%m%d"

    type_name: ClassVar[str] = "DateHandler"
    accepts: ClassVar[str] = "a day as YYYY-MM-DD, YYYYMMDD or YYYY-DDD (day of the year), years 1 to 9999"
    example: ClassVar[Any] = "20250706"

    def canonical(self, name: str, text: str) -> str:
        check_length(name, text, self.accepts)
        found = _parse_day(text)
        if found is None:
            raise InvalidRequest(
                f"Field '{name}' contains invalid date {quoted(text)}",
                f"Failed to parse date {quoted(text)}: "
                "accepted are YYYY-MM-DD, YYYYMMDD and YYYY-DDD (day of the year)",
                field=name,
            )
        dash = "-" if self.canonical_format == "%Y-%m-%d" else ""
        return f"{found.year:04d}{dash}{found.month:02d}{dash}{found.day:02d}"

    def problem(self) -> Problem | None:
        if self.canonical_format not in _FORMATS:
            return Problem("canonical_format", f"unknown format '{self.canonical_format}'", ", ".join(_FORMATS))
        return None

    def value_schema(self) -> dict[str, Any]:
        limits = {"minimum": _FIRST_NUMBER, "maximum": _LAST_NUMBER}
        return {"type": ["string", "integer"], "pattern": _ANY_DAY, **limits}


def _parse_day(text: str) -> date | None:
    for pattern in (_CALENDAR, _COMPACT):
        if (found := pattern.fullmatch(text)) is not None:
            try:
                return date(int(found["year"]), int(found["month"]), int(found["day"]))
            except (ValueError, OverflowError):
                pass
    if (found := _ORDINAL.fullmatch(text)) is not None and int(found["ordinal"]) > 0:
        try:
            start = date(int(found["year"]), 1, 1)
            day = start + timedelta(days=int(found["ordinal"]) - 1)
        except (ValueError, OverflowError):
            return None
        return day if day.year == start.year else None
    return None


_HOURS = re.compile(r"\d{1,2}", re.ASCII)
_COLON = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)
_FOUR = re.compile(r"(\d{2})(\d{2})", re.ASCII)
_ANY_TIME = r"^(?:(?:[01]?[0-9]|2[0-3])(?::[0-5][0-9])?|(?:[01][0-9]|2[0-3])[0-5][0-9])$"  # for JSON schemas


class TimeField(Field, frozen=True, kw_only=True):
    """A time of day, written as 12, 12:00 or 1200."""

    type_name: ClassVar[str] = "TimeHandler"
    accepts: ClassVar[str] = "a time of day as HH, HH:MM or HHMM, hours 0 to 23, minutes 0 to 59"
    example: ClassVar[Any] = "1200"

    def canonical(self, name: str, text: str) -> str:
        if _HOURS.fullmatch(text):
            hours, minutes = text, "00"
        elif (found := (_COLON if ":" in text else _FOUR).fullmatch(text)) is not None:
            hours, minutes = found.groups()
        else:
            raise InvalidRequest(
                f"Field '{name}' contains invalid time {quoted(text)}; accepted are HH, HH:MM and HHMM", field=name
            )
        if int(hours) > 23:
            raise InvalidRequest(f"Field '{name}' has invalid hours in '{text}'; accepted are 0 to 23", field=name)
        if int(minutes) > 59:
            raise InvalidRequest(f"Field '{name}' has invalid minutes in '{text}'; accepted are 0 to 59", field=name)
        return f"{hours:0>2}{minutes}"

    def value_schema(self) -> dict[str, Any]:
        return {"type": ["string", "integer"], "pattern": _ANY_TIME, "minimum": 0, "maximum": 2359}


class PolygonField(SpatialField, frozen=True, kw_only=True):
    """A closed ring of latitude, longitude pairs; readers get the array, whatever the publisher sent."""

    type_name: ClassVar[str] = "PolygonHandler"
    accepts: ClassVar[str] = (
        "a closed ring [[lat,lon],…] or '(lat,lon,lat,lon,…)' of at least 4 pairs, the last equal to the first"
    )
    example: ClassVar[Any] = [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]]

    def canonical(self, name: str, text: str) -> str:
        return shapes.polygon_json(read_polygon(name, text)).decode()

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[bytes, shapes.Polygon]:
        polygon = read_polygon(name, value, max_vertices)
        return shapes.polygon_json(polygon), polygon

    def value_schema(self) -> dict[str, Any]:
        pairs = {"type": "array", "items": PAIR_SCHEMA, "minItems": shapes.MIN_VERTICES}
        return {"anyOf": [{"type": "string", "pattern": shapes.POLYGON_TEXT}, pairs]}


def read_polygon(name: str, value: object, max_vertices: int = shapes.MAX_VERTICES) -> shapes.Polygon:
    """Read a polygon in any form; InvalidRequest names the field and the defect."""
    try:
        return shapes.polygon_of(value if isinstance(value, list) else identifier_text(name, value), max_vertices)
    except shapes.ShapeError as error:
        kind = PolygonTooLarge if isinstance(error, shapes.TooManyVertices) else InvalidRequest
        raise kind(f"field '{name}' must be a valid polygon: {error}", str(error), field=name) from None


MAX_POINTS = 10_000


class PointCloudField(SpatialField, frozen=True, kw_only=True):
    """A list of latitude, longitude pairs; order and duplicates are kept."""

    max_points: int = MAX_POINTS

    type_name: ClassVar[str] = "PointCloudHandler"
    accepts: ClassVar[str] = "[[lat,lon],…] with 1 to max_points pairs of numbers; watch and replay filter by `polygon`"
    example: ClassVar[Any] = [[52.5, 13.4], [48.1, 11.6]]

    def canonical(self, name: str, text: str) -> str:
        raise InvalidRequest(f"field '{name}' must be an array of [lat, lon] pairs; got text", field=name)

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[bytes, shapes.PointCloud]:
        try:
            cloud = shapes.parse_point_cloud(value, self.max_points)
        except shapes.ShapeError as error:
            raise InvalidRequest(f"field '{name}' {error}", str(error), field=name) from None
        return cloud.canonical, cloud

    def problem(self) -> Problem | None:
        if not 1 <= self.max_points <= MAX_POINTS:
            return Problem("max_points", f"{self.max_points} is out of range", f"a whole number from 1 to {MAX_POINTS}")
        return None

    def sample(self) -> Any:
        return self.example[: self.max_points]

    def value_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": PAIR_SCHEMA, "minItems": 1, "maxItems": self.max_points}


FIELD_TYPES: dict[str, type[Field]] = {
    field.type_name: field
    for field in (
        StringField,
        DateField,
        TimeField,
        EnumField,
        IntField,
        FloatField,
        ExpverField,
        PolygonField,
        PointCloudField,
    )
}
