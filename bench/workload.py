"""What is published and asked for: the same event type, bodies and filters for us and for every rival."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

__all__ = [
    "EVENT_TYPE",
    "KEYS",
    "SCHEMA",
    "STAMP",
    "bodies",
    "configuration",
    "everything",
    "identifier",
    "others",
    "write",
]

EVENT_TYPE = "field"
KEYS = ["class", "expver", "date", "time", "stream", "step"]
STAMP = "#" * 19  # the load generator puts the time here

SCHEMA: dict[str, Any] = {
    EVENT_TYPE: {
        "payload": {"required": False},
        "topic": {"base": EVENT_TYPE, "key_order": KEYS},
        "identifier": {
            "class": {"type": "StringHandler", "max_length": 2, "required": True},
            "expver": {"type": "ExpverHandler", "default": "0001", "required": False},
            "date": {"type": "DateHandler", "canonical_format": "%Y%m%d", "required": False},
            "time": {"type": "TimeHandler", "required": False},
            "stream": {"type": "StringHandler", "required": False},
            "step": {"type": "IntHandler", "range": [0, 100000], "required": False},
        },
    }
}

_LOCATION = "s3://products/od/0001/20250706/1200/enfo/" + "x" * 160


def configuration(kind: str, **watch_endpoint: Any) -> dict[str, Any]:
    """A server with that backend, everything else as delivered."""
    return {
        "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://127.0.0.1:8000"},
        "notification_backend": {
            "kind": kind,
            "in_memory": {"max_history_per_topic": 10_000_000, "max_topics": 1_000_000},
            "sqlite": {"path": "log"},
        },
        "watch_endpoint": watch_endpoint,
        "notification_schema": SCHEMA,
    }


def identifier(step: int, stream: str = "enfo") -> dict[str, str]:
    """The identifier of one notification."""
    return {"class": "od", "expver": "0001", "date": "20250706", "time": "1200", "stream": stream, "step": str(step)}


def bodies(count: int = 64, stamped: bool = False) -> list[str]:
    """Publish requests; the event that watchers get is about 650 bytes long."""
    payload = {"location": _LOCATION, "size": 1234567, "t": STAMP if stamped else "0" * 19}
    return [
        json.dumps({"event_type": EVENT_TYPE, "identifier": identifier(step), "payload": payload})
        for step in range(count)
    ]


def everything(**start: str) -> list[str]:
    """The filter that all of `bodies` pass."""
    return [json.dumps({"event_type": EVENT_TYPE, "identifier": {"class": "od"}, **start})]


def others(count: int, seed: int = 1) -> list[str]:
    """Filters that none of `bodies` passes, all different: pinned fields, sets and ranges."""
    chance = random.Random(seed)
    asked = []
    for number in range(count):
        step: Any = str(chance.randrange(1000, 100_000))
        if number % 4 == 1:
            step = {"between": [low := chance.randrange(1000, 90_000), low + chance.randrange(10)]}
        elif number % 4 == 2:
            step = {"in": [chance.randrange(1000, 100_000) for _ in range(4)]}
        asked.append({"class": "od", "stream": f"other{number % 500}" if number % 4 == 3 else "enfo", "step": step})
    return [json.dumps({"event_type": EVENT_TYPE, "identifier": each}) for each in asked]


def write(lines: list[str], file: Path) -> Path:
    """The lines as a file for the load generator."""
    file.write_text("\n".join(lines) + "\n")
    return file
