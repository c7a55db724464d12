"""The small notations of a configuration: switches, whole numbers, durations and sizes."""

from __future__ import annotations

import re

__all__ = ["duration", "format_duration", "integer", "size", "switch"]

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {
    "K": 10**3,
    "Ki": 2**10,
    "M": 10**6,
    "Mi": 2**20,
    "G": 10**9,
    "Gi": 2**30,
    "T": 10**12,
    "Ti": 2**40,
}
_LARGEST = 2**63 - 1
_DIGITS_OF_LARGEST = 19


def switch(text: str) -> bool:
    """True or False for the words people use for it."""
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"'{text}' is neither true nor false")


def integer(text: str) -> int:
    """A whole number in decimal digits, with an optional sign."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"'{text}' is not a whole number")
    return int(text) if len(text) <= 40 else _beyond(text)


def _beyond(text: str) -> int:
    # Python refuses to parse thousands of digits; any number of this length is out of every range.
    return -(10**40) if text.startswith("-") else 10**40


def duration(text: str) -> int:
    """Nanoseconds of a duration such as `90s`, `10m`, `12h`, `7d` or `2w`."""
    found = re.fullmatch(r"([0-9]+)([smhdw])", text.strip().lower(), re.ASCII)
    if found is None:
        raise ValueError(f"'{text}' is not a duration with a unit")
    return _positive(text, found[1], _SECONDS[found[2]] * 1_000_000_000)


def size(text: str) -> int:
    """Bytes of a size such as `500K`, `64Mi` or `2G`; `Ki`, `Mi`, `Gi` and `Ti` count in 1024s."""
    found = re.fullmatch(r"([0-9]+)([KMGT]i?)", text.strip(), re.ASCII)
    if found is None:
        raise ValueError(f"'{text}' is not a size with a unit")
    return _positive(text, found[1], _BYTES[found[2]])


def _positive(text: str, digits: str, unit: int) -> int:
    digits = digits.lstrip("0")
    if not digits:
        raise ValueError(f"'{text}' must be greater than zero")
    if len(digits) > _DIGITS_OF_LARGEST or int(digits) * unit > _LARGEST:
        raise ValueError(f"'{text}' is too large")
    return int(digits) * unit


def format_duration(nanoseconds: int) -> str:
    """The shortest way to write a duration of whole seconds."""
    seconds = nanoseconds // 1_000_000_000
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]}{unit}"
    return f"{seconds}s"
