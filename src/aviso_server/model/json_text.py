"""JSON and numbers as text: strict in, compact and sorted out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import orjson

from aviso_server.errors import InvalidRequest, MalformedRequest

__all__ = [
    "LONGEST",
    "MAX_DEPTH",
    "NUMBER",
    "check_length",
    "compact",
    "compact_all",
    "deeper_than",
    "identifier_text",
    "loads",
    "most_values",
    "parse",
    "printable",
    "quoted",
    "shortest",
    "unsigned",
]


MAX_DEPTH = 127
MAX_VALUES = 131_072
"""Values in one text: as many as 262,144 bytes, the usual limit of a request, can hold."""

_encoder = msgspec.json.Encoder(order="sorted")
compact = _encoder.encode
"""Compact JSON bytes with sorted keys; floats as shortest text, non-ASCII unescaped."""

_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_ALIKE = bytes.maketrans(b"{}", b"[]")
_FEW = 1000
_first = itemgetter(0)
# Never fails once it has begun: a string without an end reaches to the end of the text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


def loads(body: bytes) -> Any:
    """Read strict JSON: no NaN, no lone surrogates, no numbers beyond a double, at most 127 levels deep."""
    if len(body) > 2 * MAX_VALUES and most_values(body) > MAX_VALUES:  # every value takes two bytes
        raise MalformedRequest("INVALID_JSON", f"Invalid JSON: more than {MAX_VALUES} values")
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise MalformedRequest("INVALID_JSON", "Invalid JSON in request body", str(error)) from None
    if deeper_than(body, MAX_DEPTH):
        raise MalformedRequest("INVALID_JSON", f"Invalid JSON: nested deeper than {MAX_DEPTH} levels")
    return value


def most_values(text: bytes) -> int:
    """Bound the number of values in a JSON text; in a short one, commas and brackets in strings count too."""
    found = _separators(text)
    return found if found <= _FEW else _separators(_STRING.sub(b"", text))


def _separators(text: bytes) -> int:
    return 1 + text.count(b",") + _brackets(text)


def deeper_than(body: bytes, limit: int) -> bool:
    """Return True if arrays and objects nest more than `limit` levels deep in a valid JSON text."""
    # every level takes two brackets and their number bounds the depth: nearly every body passes without a look inside
    if len(body) <= 2 * limit or body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = _STRING.sub(b"", body).translate(_ALIKE, _NO_BRACKETS)
    if len(brackets) - len(brackets.lstrip(b"[")) > limit:
        return True
    if len(brackets.replace(b"[]", b"")) < 2 * limit:  # without the innermost pairs it is one level less deep
        return False
    marks = np.frombuffer(brackets, dtype=np.uint8)
    steps = (marks == ord("[")).astype(np.int8) * 2 - 1
    return bool(np.cumsum(steps, dtype=np.int64).max(initial=0) > limit)


def compact_all(values: Sequence[object], limit: int) -> list[bytes] | None:
    """Do what `compact` does for many, much faster; None if one may nest more than `limit` levels deep."""
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
    """Return the text of a scalar identifier value; InvalidRequest for null, arrays and objects."""
    if type(value) is str:
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int | float):
        text = _encoder.encode(value).decode()
        # a positive exponent has its sign, in topics that other servers of this protocol write too
        return text if "e" not in text or "e-" in text else text.replace("e", "e+")
    got = {type(None): "null", list: "an array", dict: "an object"}[type(value)]
    raise InvalidRequest(f"Field '{name}' must be a string, a number or a boolean; got {got}", field=name)


NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""A decimal number as a regular expression that JSON schemas understand too."""

# Python's float() alone would also take blanks, underscores and digits of other scripts.
_NUMBER = re.compile(rf"{NUMBER}|[+-]?(?i:nan|inf|infinity)")


def parse(text: str) -> float | None:
    """Read a decimal number; None if the text is not one, or longer than any number needs.

    The words `nan`, `inf` and `infinity` and numbers too large for a float come back as non-finite
    values, so that the caller can say which of the two was wrong.
    """
    if len(text) > LONGEST or _NUMBER.fullmatch(text) is None:
        return None
    return float(text)


def shortest(value: float) -> str:
    """Write a finite number with the fewest digits that read back equal, no exponent, no trailing `.0`."""
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


LONGEST = 1024
"""Characters of the text of a number, a day or a time. The longest decimal of a double has fewer than 400."""

_MOST_QUOTED = 80


def check_length(name: str, text: str, accepted: str) -> None:
    """Refuse a text that is too long to be a number, a day or a time."""
    if len(text) > LONGEST:
        raise InvalidRequest(
            f"Field '{name}' has {len(text)} characters, more than {LONGEST}: {quoted(text)}; accepted is {accepted}",
            field=name,
        )


def quoted(text: str) -> str:
    """Quote a value in an error message: of a long one only the start."""
    return f"'{text}'" if len(text) <= _MOST_QUOTED else f"'{text[:_MOST_QUOTED]}…'"


def printable(text: str) -> str:
    """Escape what could break a line or steer a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def unsigned(text: str) -> str | None:
    """Return the digits of an unsigned decimal without plus sign and leading zeros; None if the text is not one."""
    digits = text[1:] if text[:1] == "+" else text
    if not digits.isdigit() or not digits.isascii() or len(digits) > LONGEST:
        return None
    return digits.lstrip("0") or "0"
