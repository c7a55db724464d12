"""Shapes as text: `(lat,lon,lat,lon,...)` for a polygon, `lat,lon` for a point."""

from __future__ import annotations

import math
from typing import NoReturn

import msgspec

from aviso_server.model import decimal_text
from aviso_server.model.geometry.shape import Point, Polygon, ShapeError, TooManyVertices
from aviso_server.model.notification import Box

__all__ = [
    "MAX_LAT",
    "MAX_LON",
    "MAX_VERTICES",
    "MIN_VERTICES",
    "POINT_TEXT",
    "POLYGON_TEXT",
    "box_text",
    "check_range",
    "check_ring",
    "check_size",
    "is_on_map",
    "parse_box",
    "parse_point",
    "parse_polygon",
    "polygon_text",
    "shown",
]

MAX_LAT = 90.0
MAX_LON = 180.0
MIN_VERTICES = 4
MAX_VERTICES = 10_000

# Blanks of Unicode. str.strip() without an argument would also take the separators U+001C to U+001F.
_BLANKS = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)

_BLANK = r"[\s\u0085]*"
_ITEM = f"{_BLANK}{decimal_text.NUMBER}{_BLANK}"
POINT_TEXT = rf"^{_BLANK}(?:{_ITEM},{_ITEM}|\({_ITEM},{_ITEM}\)){_BLANK}$"
"""What the text of every point looks like, as a regular expression for JSON schemas."""
_RING = f"(?:{_ITEM},){{{2 * MIN_VERTICES - 1},}}{_ITEM}"
POLYGON_TEXT = rf"^{_BLANK}(?:{_RING}|\({_RING}\)){_BLANK}$"
"""What the text of every polygon looks like, as a regular expression for JSON schemas."""

# JSON knows a part of our number grammar, with the same meaning, and is read many times faster.
_JSON_NUMBERS = msgspec.json.Decoder(tuple[float, ...])


def parse_polygon(text: str, max_vertices: int = MAX_VERTICES) -> Polygon:
    """Read a polygon from text such as `(0,0,0,2,2,2,0,0)`, latitude first, parentheses optional."""
    inner = _without_parentheses(text)
    if not inner:
        raise ShapeError("polygon coordinate string is empty; write lat,lon,lat,lon,...")
    count = inner.count(",") + 1
    if count % 2:
        raise ShapeError(f"odd number of values ({count}); each latitude needs a longitude")
    check_size(count // 2, max_vertices)
    values = _numbers(inner)
    lats, lons = values[0::2], values[1::2]
    box = Box(min(lats), min(lons), max(lats), max(lons))
    # A nan may hide from min and max, but not from the sum.
    if not is_on_map(box) or math.isnan(sum(values)):
        for lat, lon in zip(lats, lons, strict=True):
            check_range(lat, lon)
    check_ring(lats, lons)
    return Polygon(lats, lons, box)


def parse_point(text: str) -> Point:
    """Read a point from `lat,lon` or `(lat,lon)`."""
    inner = _without_parentheses(text)
    if not inner:
        raise ShapeError("point is empty; write lat,lon")
    count = inner.count(",") + 1
    if count != 2:
        raise ShapeError(f"point has {count} values; write exactly two, lat,lon")
    lat, lon = _numbers(inner)
    check_range(lat, lon)
    return Point(lat, lon)


def parse_box(text: str) -> Box | None:
    """Read `minlat,minlon,maxlat,maxlon`; None if the text is no box."""
    numbers = [decimal_text.parse(item.strip(_BLANKS)) for item in text.split(",")]
    values = [number for number in numbers if number is not None and math.isfinite(number)]
    return Box(*values) if len(values) == len(numbers) == 4 else None


def box_text(box: Box) -> str:
    """Write a box as `minlat,minlon,maxlat,maxlon`."""
    return ",".join(map(decimal_text.shortest, box))


def polygon_text(polygon: Polygon) -> str:
    """Write a polygon as `(lat,lon,lat,lon,...)`; reading it back gives an equal polygon."""
    values = [value for pair in zip(polygon.lats, polygon.lons, strict=True) for value in pair]
    text = msgspec.json.encode(values)[1:-1].decode()
    if "e" in text:  # JSON may write very small numbers with an exponent
        return f"({','.join(map(decimal_text.shortest, values))})"
    return f"({text.replace('.0,', ',').removesuffix('.0')})"


def check_range(lat: float, lon: float) -> None:
    """Refuse a place that is not on the map; the limits belong to it."""
    if not -MAX_LAT <= lat <= MAX_LAT:
        raise ShapeError(f"latitude {_number_text(lat)} is outside the valid range [-90, 90]")
    if not -MAX_LON <= lon <= MAX_LON:
        raise ShapeError(f"longitude {_number_text(lon)} is outside the valid range [-180, 180]")


def check_size(vertices: int, most: int) -> None:
    """Raise TooManyVertices for a polygon that is too large to be looked at."""
    if vertices > most:
        raise TooManyVertices(f"polygon has {vertices} coordinate pairs, maximum is {most}")


def check_ring(lats: tuple[float, ...], lons: tuple[float, ...]) -> None:
    """Refuse a ring that is too short or open."""
    if len(lats) < MIN_VERTICES:
        raise ShapeError(f"a polygon needs at least 4 coordinate pairs, the closing one included; found {len(lats)}")
    if lats[0] != lats[-1] or lons[0] != lons[-1]:
        first = f"{_number_text(lats[0])},{_number_text(lons[0])}"
        last = f"{_number_text(lats[-1])},{_number_text(lons[-1])}"
        raise ShapeError(f"polygon is not closed: the last pair ({last}) must equal the first ({first})")


def shown(value: str) -> str:
    """The value as an error message quotes it: long ones are cut."""
    return f"'{value}'" if len(value) <= 40 else f"'{value[:40]}...'"


def _without_parentheses(text: str) -> str:
    """The list of numbers; refuses half a pair of parentheses and any inside the list."""
    inner = text.strip(_BLANKS)
    opened, closed = inner.startswith("("), inner.endswith(")")
    if opened and not closed:
        raise ShapeError("missing the closing parenthesis; use both parentheses or none")
    if closed and not opened:
        raise ShapeError("missing the opening parenthesis; use both parentheses or none")
    if opened:
        inner = inner[1:-1].strip(_BLANKS)
    if "(" in inner or ")" in inner:
        raise ShapeError("parentheses inside the list; use one pair around the whole list or none")
    return inner


def _numbers(inner: str) -> tuple[float, ...]:
    """All numbers of the list; an even count is expected."""
    try:
        return _JSON_NUMBERS.decode(f"[{inner}]")
    except ValueError:  # not JSON, or a lone surrogate
        items = inner.split(",")
    values = tuple(value for item in items if (value := decimal_text.parse(item.strip(_BLANKS))) is not None)
    if len(values) < len(items):
        _refuse(items)
    return values


def _refuse(items: list[str]) -> NoReturn:
    """Name the first item that is not a number."""
    for index, item in enumerate(items):
        trimmed = item.strip(_BLANKS)
        if decimal_text.parse(trimmed) is None:
            name = "longitude" if index % 2 else "latitude"
            raise ShapeError(f"could not parse {name} {shown(trimmed)}; a decimal number is expected")
    raise AssertionError("every item is a number")


def is_on_map(box: Box) -> bool:
    """True if every place in the box exists; the limits belong to the map."""
    return box.min_lat >= -MAX_LAT and box.max_lat <= MAX_LAT and box.min_lon >= -MAX_LON and box.max_lon <= MAX_LON


def _number_text(value: float) -> str:
    return decimal_text.shortest(value) if math.isfinite(value) else str(value)
