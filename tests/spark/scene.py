"""What the tests of the pipeline share: a configuration with every kind of field, and notifications to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_aviso.options import Options, read_options
from tests.harness import Server

__all__ = ["CONFIGURATION", "SQUARE", "bare", "flood", "publish_floods", "publish_tides", "tide"]

SQUARE = "(0,0,0,2,2,2,2,0,0,0)"

CONFIGURATION: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://localhost:8000"},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema_strict": False,
    "notification_schema": {
        "flood": {
            "topic": {"base": "floods", "key_order": ["region", "time", "severity"]},
            "identifier": {
                "region": {"type": "EnumHandler", "values": ["north", "south"], "required": True},
                "time": {"type": "TimeHandler", "required": True},
                "date": {"type": "DateHandler", "required": False},
                "severity": {"type": "IntHandler", "range": [1, 7], "required": True},
                "depth": {"type": "FloatHandler", "required": False},
                "polygon": {"type": "PolygonHandler", "required": False},
            },
        },
        "tide": {
            "payload": {"required": False},
            "topic": {"base": "tide", "key_order": ["port", "severity"]},
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "severity": {"type": "StringHandler", "required": False},
                "version": {"type": "ExpverHandler", "default": "0001", "required": False},
            },
        },
    },
}


def bare(url: str, **given: str) -> Options:
    """Options of a read."""
    return read_options({"url": url, "retries": "2", **given})


def flood(number: int) -> dict[str, Any]:
    """The identifier of the flood of that number, as a publisher would send it."""
    return {
        "region": "north" if number % 2 else "south",
        "time": "12:00",
        "date": "2025-07-06",
        "severity": number % 7 + 1,
        "depth": number / 4,
        "polygon": SQUARE,
    }


def tide(number: int) -> Mapping[str, Any]:
    """The identifier of the tide of that number."""
    return {"port": f"port {number % 5}", "severity": f"level.{number}", "version": "7"}


def publish_floods(server: Server, first: int, last: int) -> None:
    """Publish floods whose numbers are their sequences, if nothing else is published as a flood."""
    server.client.publish_many("flood", [(flood(number), {"n": number}) for number in range(first, last + 1)])


def publish_tides(server: Server, first: int, last: int) -> None:
    """Publish tides whose numbers are their sequences."""
    server.client.publish_many("tide", [(tide(number), number) for number in range(first, last + 1)])
