"""Identifiers that the cases publish and ask for, as the conformance fixture defines them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "DISSEMINATION",
    "EVENT_TYPES",
    "MARS",
    "POLYGON",
    "PROBE",
    "SEED_A",
    "SEED_B",
    "SQ",
    "P",
    "Q",
    "but",
    "pairs",
    "without",
]

P = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"
Q = "(10.0,10.0,10.2,10.0,10.2,10.2,10.0,10.2,10.0,10.0)"
SQ = "(0,0,0,2,2,2,2,0,0,0)"

EVENT_TYPES = [
    "dissemination",
    "extreme",
    "extreme_event",
    "mars",
    "probe",
    "test_polygon",
    "test_polygon_optional",
]

MARS = {
    "class": "od",
    "expver": "0001",
    "domain": "g",
    "date": "20250706",
    "time": "1200",
    "stream": "enfo",
    "step": "1",
}

DISSEMINATION = {"destination": "FOO", "target": "E1", **MARS}

PROBE = {
    "txt": "a",
    "num": "1",
    "flt": "1",
    "exp": "x",
    "day": "2025-01-01",
    "clock": "12",
    "kind": "red",
    "off": "o",
    "offnum": "1",
}

POLYGON = {"date": "20250706", "time": "1200", "polygon": P}

SEED_A = {"region": "north", "run_time": "1200", "severity": "3", "anomaly": "42.5", "polygon": P}
SEED_B = {"region": "south", "run_time": "1200", "severity": "6", "anomaly": "87.2", "polygon": Q}


def pairs(polygon: str) -> list[list[float]]:
    """The pairs of a polygon that is written as text."""
    numbers = [float(number) for number in polygon.strip(" ()").split(",")]
    return [list(pair) for pair in zip(numbers[0::2], numbers[1::2], strict=True)]


def but(identifier: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The identifier with some values changed or added."""
    return {**identifier, **changes}


def without(identifier: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The identifier with some fields left out."""
    return {name: value for name, value in identifier.items() if name not in names}
