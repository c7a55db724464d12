"""JSON as the contract reads it: strict in, compact and sorted out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import orjson

from aviso_server.errors import InvalidRequest, MalformedRequest

__all__ = ["MAX_DEPTH", "compact", "compact_all", "deeper_than", "identifier_text", "loads"]

MAX_DEPTH = 127

_encoder = msgspec.json.Encoder(order="sorted")
compact = _encoder.encode
"""Compact JSON bytes with sorted keys; floats as shortest text, non-ASCII unescaped."""

_STEPS = {ord("["): 1, ord("]"): -1}
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_ALIKE = bytes.maketrans(b"{}", b"[]")
_FEW = 1000
_first = itemgetter(0)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def loads(body: bytes) -> Any:
    """Strict JSON: no NaN, no lone surrogates, no numbers beyond a double, at most 127 levels deep."""
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise MalformedRequest("INVALID_JSON", "Invalid JSON in request body", str(error)) from None
    if deeper_than(body, MAX_DEPTH):
        raise MalformedRequest("INVALID_JSON", f"Invalid JSON: nested deeper than {MAX_DEPTH} levels")
    return value


def deeper_than(body: bytes, limit: int) -> bool:
    """True if arrays and objects nest more than `limit` levels deep in a valid JSON text.

    Only in a valid one: a string that never ends would be looked for again from each of its quotes.
    """
    # every level takes two brackets and their number bounds the depth: nearly every body passes without a look inside
    if len(body) <= 2 * limit or (limit > 0 and body.find(b"{", 1) < 0 and body.find(b"[", 1) < 0):
        return False
    if _brackets(body) <= limit:
        return False
    brackets = _STRING.sub(b"", body).translate(_ALIKE, _NO_BRACKETS)
    if len(brackets) - len(brackets.lstrip(b"[")) > limit:
        return True
    if len(brackets.replace(b"[]", b"")) < 2 * limit:  # without the innermost pairs it is one level less deep
        return False
    if len(brackets) <= _FEW:  # for numpy to be worth its while
        return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limit
    marks = np.frombuffer(brackets, dtype=np.uint8)
    steps = (marks == ord("[")).astype(np.int8) * 2 - 1
    return bool(np.cumsum(steps, dtype=np.int64).max(initial=0) > limit)


def compact_all(values: Sequence[object], limit: int) -> list[bytes] | None:
    """`compact` of each, many times faster; None if one of them may nest more than `limit` levels deep."""
    try:
        lines = _encoder.encode_lines(values)
    except RecursionError:
        return None
    texts = lines[:-1].split(b"\n")  # within values, ends of lines are escaped
    # every level below the first takes a bracket that does not begin a text
    inner = _brackets(lines) - _brackets(bytes(map(_first, texts)))
    return texts if inner < limit or not any(deeper_than(text, limit) for text in texts) else None


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def identifier_text(name: str, value: object) -> str:
    """The text of a scalar identifier value; InvalidRequest for null, arrays and objects."""
    if type(value) is str:
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int | float):
        return _encoder.encode(value).decode()
    got = {type(None): "null", list: "an array", dict: "an object"}[type(value)]
    raise InvalidRequest(f"Field '{name}' must be a string, a number or a boolean; got {got}", field=name)
