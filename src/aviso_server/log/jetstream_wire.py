"""How a notification travels as a NATS message, and how messages of other writers are understood.

Subject, body and the headers `spatial_bbox`, `spatial_geometry` and `spatial_point_cloud` are the reference server's.
Ours are `aviso_identifier`, the whole identifier as JSON, and `aviso_topic`, for a topic that cannot be a subject.
A message without `aviso_identifier` was written by somebody else: its identifier is read from the topic.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from aviso_server.errors import LogError
from aviso_server.model import topic as topics
from aviso_server.model.decimal_text import shortest
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box, Draft, Notification

__all__ = ["Identify", "identify_by", "message_of", "notification_of", "time_of"]

Identify = Callable[[str, Mapping[str, str]], dict[str, Any]]
"""The identifier of a foreign message, from its topic and headers."""

IDENTIFIER = b"\r\naviso_identifier: "
TOPIC = b"\r\naviso_topic: "
BOX = b"\r\nspatial_bbox: "

# A broker reads commands line by line and word by word, 4096 bytes at most.
_LONGEST_SUBJECT = 1024
_BLANK = re.compile(r"[\x00-\x20\x7f]")
_HEX_PAIR = re.compile(r"%([0-9A-Fa-f]{2})")
_ALONE = "%5F"  # no topic has this token: the encoding of tokens never makes it
_LINE_ENDS = str.maketrans("\r\n", "  ")


def message_of(draft: Draft) -> tuple[str, dict[str, str]]:
    """Subject and headers; the body is the payload."""
    subject = topic = _BLANK.sub(lambda found: f"%{ord(found[0]):02X}", draft.topic)
    headers = {"aviso_identifier": draft.identifier.decode()}
    if "." not in topic or len(topic.encode()) > _LONGEST_SUBJECT:
        subject = f"{draft.stream}.{_ALONE}"
        if "." in topic:
            subject += hashlib.sha256(topic.encode()).hexdigest()
        headers["aviso_topic"] = topic
    elif ".." in topic or topic.endswith("."):
        raise LogError(f"topic '{draft.topic}' has an empty part; on jetstream every part needs at least one character")
    if draft.box is not None:
        headers["spatial_bbox"] = ",".join([shortest(number) for number in draft.box])
        values = orjson.loads(draft.identifier)
        if isinstance(polygon := values.get("polygon"), str):
            headers["spatial_geometry"] = polygon.translate(_LINE_ENDS)
        if isinstance(cloud := values.get("point_cloud"), list):
            headers["spatial_point_cloud"] = compact(cloud).decode()
    return subject, headers


def notification_of(
    sequence: int, time: int, subject: bytes, headers: bytes, body: bytes, identify: Identify
) -> Notification:
    """The notification that a message means; `headers` is the raw block."""
    start = headers.find(IDENTIFIER)
    if start < 0:
        return _foreign(sequence, time, subject, headers, body, identify)
    start += len(IDENTIFIER)
    identifier = headers[start : headers.index(b"\r", start)]
    box = None
    if BOX in headers:
        box = _box(_value(headers, BOX))
    if TOPIC in headers:
        subject = _value(headers, TOPIC)
    topic = subject.decode("utf-8", "replace")
    if "%" in topic:
        topic = _HEX_PAIR.sub(_blank, topic)
    return Notification(sequence, time, topic, identifier, body, box)


def identify_by(key_orders: Mapping[str, Sequence[str]]) -> Identify:
    """Reads identifiers from topics laid out as the event types say; `key_orders` by topic base."""

    def identify(topic: str, headers: Mapping[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        try:
            base, *tokens = topics.parse(topic)
        except ValueError:
            return values
        named = zip(key_orders.get(base, ()), tokens, strict=False)
        values.update({name: token for name, token in named if token not in ("", topics.WILDCARD)})
        if "spatial_geometry" in headers:
            values.setdefault("polygon", headers["spatial_geometry"])
        cloud = _json(headers.get("spatial_point_cloud", "").encode())
        if isinstance(cloud, list):
            values["point_cloud"] = cloud
        return values

    return identify


def time_of(text: bytes) -> int:
    """Nanoseconds since 1970 of a broker's time such as 2026-11-15T22:15:57.352291514Z."""
    return _second(text[:19]) + int(text[20:-1].ljust(9, b"0")) if len(text) > 20 else _second(text[:19])


@lru_cache(maxsize=1024)
def _second(text: bytes) -> int:
    return int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp()) * 1_000_000_000


def _value(headers: bytes, name: bytes) -> bytes:
    start = headers.index(name) + len(name)
    return headers[start : headers.index(b"\r", start)]


def _box(text: bytes) -> Box | None:
    try:
        min_lat, min_lon, max_lat, max_lon = map(float, text.split(b","))
    except ValueError:
        return None
    return Box(min_lat, min_lon, max_lat, max_lon)


def _blank(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if _BLANK.fullmatch(character) else found[0]


def _foreign(sequence: int, time: int, subject: bytes, block: bytes, body: bytes, identify: Identify) -> Notification:
    headers: dict[str, str] = {}
    for line in block.split(b"\r\n")[1:]:
        name, found, value = line.partition(b":")
        if found:
            key, text = name.decode("utf-8", "replace"), value.strip().decode("utf-8", "replace")
            headers[key] = f"{headers[key]},{text}" if key in headers else text
    topic = subject.decode("utf-8", "replace")
    payload = _json(body) if body else None
    if payload is _NO_JSON:
        payload = body.decode("utf-8", "replace")
    box = _box(headers["spatial_bbox"].encode()) if "spatial_bbox" in headers else None
    return Notification(sequence, time, topic, compact(identify(topic, headers)), compact(payload), box)


_NO_JSON: Any = object()


def _json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return _NO_JSON
