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

import msgspec
import orjson

from aviso_server.errors import LogError
from aviso_server.model import topic as topics
from aviso_server.model.decimal_text import shortest
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box, Draft, Notification

__all__ = ["Identify", "Message", "identify_by", "message_of", "notification_of", "readable", "time_of"]

Identify = Callable[[str, Mapping[str, str]], dict[str, Any] | None]
"""The identifier of a foreign message, from its topic and headers; None if the topic is not laid out as configured."""

START = b"NATS/1.0\r\naviso_identifier: "
TOPIC = b"\r\naviso_topic: "
BOX = b"\r\nspatial_bbox: "

# A broker reads commands line by line and word by word, 4096 bytes at most.
_LONGEST_SUBJECT = 1024
_BLANK = re.compile(r"[\x00-\x20\x7f]")
_HEX_PAIR = re.compile(r"%([0-9A-Fa-f]{2})")
_ALONE = "%5F"  # no topic has this token: the encoding of tokens never makes it
_AFTER_START = len(START)
_LINE_ENDS = str.maketrans("\r\n", "  ")


class Message(msgspec.Struct, frozen=True, gc=False):
    """A draft as bytes, ready to be sent; `headers` lacks the blank line at its end, so that more can be added."""

    subject: bytes
    headers: bytes
    body: bytes
    id: bytes = b""  # under which the broker stores it once; empty: any new one will do

    @property
    def size(self) -> int:
        """Bytes that count for the broker's limit, without headers to come."""
        return len(self.headers) + len(self.body)

    def command(self, reply: bytes, more: bytes) -> bytes:
        """What to write to the broker to publish it, with more headers."""
        size = len(self.headers) + len(more) + 2
        return b"HPUB %b %b%d %d\r\n%b%b\r\n%b\r\n" % (
            self.subject,
            reply + b" " if reply else b"",
            size,
            size + len(self.body),
            self.headers,
            more,
            self.body,
        )


def message_of(draft: Draft, message_id: bytes = b"") -> Message:
    """The message that a draft becomes; LogError if it cannot."""
    topic = draft.topic
    if not topic.isprintable() or " " in topic:
        topic = _BLANK.sub(lambda found: f"%{ord(found[0]):02X}", topic)
    subject = topic.encode()
    headers = START + draft.identifier + b"\r\n"
    if b"." not in subject or len(subject) > _LONGEST_SUBJECT:
        headers += b"aviso_topic: %b\r\n" % subject
        digest = hashlib.sha256(subject).hexdigest() if b"." in subject else ""
        subject = f"{draft.stream}.{_ALONE}{digest}".encode()
    elif b".." in subject or subject.endswith(b"."):
        raise LogError(f"topic '{draft.topic}' has an empty part; on jetstream every part needs at least one character")
    if draft.box is not None:
        headers += b"spatial_bbox: %b\r\n" % ",".join([shortest(number) for number in draft.box]).encode()
        values = orjson.loads(draft.identifier)
        if isinstance(polygon := values.get("polygon"), str):
            headers += b"spatial_geometry: %b\r\n" % polygon.translate(_LINE_ENDS).encode()
        if isinstance(cloud := values.get("point_cloud"), list):
            headers += b"spatial_point_cloud: %b\r\n" % compact(cloud)
    return Message(subject, headers, draft.payload, message_id)


def notification_of(
    sequence: int, time: int, subject: bytes, headers: bytes, body: bytes, identify: Identify
) -> Notification:
    """The notification that a message means, with an empty identifier if it means none; `headers` is the raw block."""
    if not headers.startswith(START):
        return _foreign(sequence, time, subject, headers, body, identify)
    end = headers.index(b"\r", _AFTER_START)
    box = None
    if headers[end + 2 : end + 7] != b"Nats-":  # what the broker adds stands last
        if BOX in headers:
            box = _box(_value(headers, BOX))
        if TOPIC in headers:
            subject = _value(headers, TOPIC)
    topic = subject.decode("utf-8", "replace")
    if "%" in topic:
        topic = _HEX_PAIR.sub(_blank, topic)
    return Notification(sequence, time, topic, headers[_AFTER_START:end], body, box)


def identify_by(key_orders: Mapping[str, Sequence[str]]) -> Identify:
    """Reads identifiers from topics laid out as the event types say; `key_orders` by topic base."""

    def identify(topic: str, headers: Mapping[str, str]) -> dict[str, Any] | None:
        try:
            base, *tokens = topics.parse(topic)
        except ValueError:
            return None
        names = key_orders.get(base)
        if names is not None and len(names) != len(tokens):
            return None
        named = zip(names or (), tokens, strict=False)
        values: dict[str, Any] = {name: token for name, token in named if token not in ("", topics.WILDCARD)}
        if "spatial_geometry" in headers:
            values.setdefault("polygon", headers["spatial_geometry"])
        cloud = _json(headers.get("spatial_point_cloud", "").encode())
        if isinstance(cloud, list):
            values["point_cloud"] = cloud
        return values

    return identify


def time_of(text: bytes) -> int:
    """Nanoseconds since 1970 of a broker's time such as 2026-11-15T22:15:57.352291514Z."""
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
    values = identify(topic, headers)
    return Notification(sequence, time, topic, b"" if values is None else compact(values), compact(payload), box)


def readable(notifications: Sequence[Notification]) -> Sequence[Notification]:
    """Those that can match a filter: of the others nobody can say what their topic means."""
    if all(one.identifier for one in notifications):
        return notifications
    return [one for one in notifications if one.identifier]


_NO_JSON: Any = object()


def _json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return _NO_JSON
