"""Notifications as NATS messages, and reading messages of other writers.

Subject, body and the headers `spatial_bbox`, `spatial_geometry` and `spatial_point_cloud` are the reference server's.
Ours are `aviso_identifier`, the identifier as JSON, and `aviso_topic`, for a topic that cannot be a subject. Brokers
take 64 kB of headers, so a shape stands in one of them only: the others have a placeholder for it.
A message without `aviso_identifier` was written by somebody else: its identifier is read from the topic, and a polygon
may be JSON, as servers from 0.8 on write it, or text.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from aviso_server.errors import LogError
from aviso_server.model import topic as topics
from aviso_server.model.json_text import compact, shortest
from aviso_server.model.notification import Box, Draft, Notification
from aviso_server.model.shapes import ShapeError, parse_point_cloud, polygon_json, polygon_of

__all__ = ["Identify", "Message", "identify_by", "message_of", "notification_of", "readable", "time_of"]

logger = logging.getLogger(__name__)

Identify = Callable[[str], dict[str, Any] | None]
"""The identifier of a foreign message, from its topic; None if the topic is not laid out as configured."""

START = b"NATS/1.0\r\naviso_identifier: "
TOPIC = b"\r\naviso_topic: "
BOX = b"\r\nspatial_bbox: "

# Members of an identifier that are shapes, and the headers in which they travel.
_SHAPES = ((b'"polygon":', "spatial_geometry"), (b'"point_cloud":', "spatial_point_cloud"))
_PLACEHOLDER = b"null"
_POLYGON_TOKEN = "%5Fpolygon"  # in the place of a polygon in a topic that is not the subject

# A broker reads commands line by line, 4096 bytes at most; this leaves room for the rest of the line. Other servers
# read the subject only, so a topic stands there whenever it can.
_LONGEST_SUBJECT = 3968
_BLANK = re.compile(r"[\x00-\x20\x7f]")
_HEX_PAIR = re.compile(r"%([0-9A-Fa-f]{2})")
_ALONE = "%5F"  # no topic has this token: the encoding of tokens never makes it
_AFTER_START = len(START)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A draft, ready to be sent."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    size: int  # bytes that count for the broker's limit, without headers to come
    id: str = ""  # under which the broker stores it once; empty: any new one will do


def message_of(draft: Draft, message_id: str = "") -> Message:
    """Build the message that a draft becomes; LogError if it cannot be one."""
    topic = draft.topic
    if not topic.isprintable() or " " in topic:
        topic = _BLANK.sub(lambda found: f"%{ord(found[0]):02X}", topic)
    subject, encoded = topic, topic.encode()
    identifier, shapes = draft.identifier, {}
    if draft.box is not None:
        shapes["spatial_bbox"] = ",".join([shortest(number) for number in draft.box])
        for member, header in _SHAPES:
            identifier, shape = _taken_out(identifier, member)
            if shape:
                shapes[header] = shape.decode()
                topic = topic.replace(topics.encode(shape.decode()), _POLYGON_TOKEN)
    headers = {"aviso_identifier": identifier.decode()}
    if "." not in subject or len(encoded) > _LONGEST_SUBJECT:
        headers["aviso_topic"] = topic
        subject = f"{draft.stream}.{_ALONE}{hashlib.sha256(encoded).hexdigest() if '.' in subject else ''}"
    elif ".." in subject or subject.endswith("."):
        raise LogError(f"topic '{draft.topic}' has an empty part; on jetstream every part needs at least one character")
    headers |= shapes
    size = len(START) + len(draft.payload) + sum([len(name) + len(text.encode()) + 4 for name, text in headers.items()])
    return Message(subject, headers, draft.payload, size, message_id)


def notification_of(
    sequence: int, time: int, subject: bytes, headers: bytes, body: bytes, identify: Identify
) -> Notification:
    """Read the notification that a message means; `headers` is the raw block.

    A message that means none is reported and gets an empty identifier: it must not keep those after it away.
    """
    try:
        if headers.startswith(START):
            return _own(sequence, time, subject, headers, body)
        return _foreign(sequence, time, subject, headers, body, identify)
    except Exception as error:  # whatever somebody has written
        topic = subject.decode("utf-8", "replace")
        logger.warning(
            "message %d of subject %s is not a notification: %s",
            sequence,
            topic,
            error,
            extra={"event": "backend.jetstream.message.malformed"},
        )
        return Notification(sequence, time, topic, b"", b"null")


def _own(sequence: int, time: int, subject: bytes, headers: bytes, body: bytes) -> Notification:
    end = headers.index(b"\r", _AFTER_START)
    identifier, box, polygon = headers[_AFTER_START:end], None, b""
    if identifier[:1] != b"{":
        raise ValueError("its identifier is not an object")
    if headers[end + 2 : end + 7] != b"Nats-":  # what the broker adds stands last
        if BOX in headers:
            box = _box(_value(headers, BOX))
            for member, header in _SHAPES:
                name = f"\r\n{header}: ".encode()
                if member + _PLACEHOLDER in identifier and name in headers:
                    polygon = _value(headers, name)
                    identifier = identifier.replace(member + _PLACEHOLDER, member + polygon, 1)
        if TOPIC in headers:
            subject = _value(headers, TOPIC)
    topic = subject.decode("utf-8", "replace")
    if "%" in topic:
        topic = _HEX_PAIR.sub(_blank, topic)
        if _POLYGON_TOKEN in topic:
            topic = topic.replace(_POLYGON_TOKEN, topics.encode(polygon.decode()))
    return Notification(sequence, time, topic, identifier, body, box)


def identify_by(key_orders: Mapping[str, Sequence[str]]) -> Identify:
    """Reads identifiers from topics laid out as the event types say; `key_orders` by topic base."""

    def identify(topic: str) -> dict[str, Any] | None:
        try:
            base, *tokens = topics.parse(topic)
        except ValueError:
            return None
        names = key_orders.get(base)
        if names is not None and len(names) != len(tokens):
            return None
        named = zip(names or (), tokens, strict=False)
        return {name: token for name, token in named if token not in ("", topics.WILDCARD)}

    return identify


def time_of(text: bytes) -> int:
    """Read a broker's time such as 2026-11-15T22:15:57.352291514Z as nanoseconds since 1970."""
    second, fraction = _second(text[:19]), text[20:-1]
    return second + int(fraction) * _SCALE[len(fraction)] if fraction else second


_SCALE = [10 ** (9 - digits) for digits in range(10)]


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
    values = identify(topic)
    if values is not None:
        _add_shapes(values, headers)
    return Notification(sequence, time, topic, b"" if values is None else compact(values), compact(payload), box)


def _taken_out(identifier: bytes, member: bytes) -> tuple[bytes, bytes]:
    """Return the identifier with a placeholder instead of an array of pairs, and that array; empty if there is none."""
    start = identifier.find(member + b"[[")
    if start < 0:
        return identifier, b""
    start += len(member)
    end = identifier.index(b"]]", start) + 2
    return identifier[:start] + _PLACEHOLDER + identifier[end:], identifier[start:end]


def _add_shapes(values: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Put the shapes of a foreign message into its identifier, in our own form; those that are none stay texts."""
    polygon = headers.get("spatial_geometry", values.get("polygon"))
    if polygon is not None:
        try:
            values["polygon"] = msgspec.Raw(polygon_json(polygon_of(polygon, sys.maxsize)))
        except ShapeError:
            values["polygon"] = polygon
    cloud = headers.get("spatial_point_cloud")
    if cloud is not None:
        try:
            values["point_cloud"] = msgspec.Raw(parse_point_cloud(_json(cloud.encode()), sys.maxsize).canonical)
        except ShapeError:
            values["point_cloud"] = cloud


def readable(notifications: Sequence[Notification]) -> Sequence[Notification]:
    """Return those that can match a filter: of the others nobody can say what their topic means."""
    if all(one.identifier for one in notifications):
        return notifications
    return [one for one in notifications if one.identifier]


_NO_JSON: Any = object()


def _json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return _NO_JSON
