"""Numbers as people write them: decimal text to float and back, without exponents on the way out."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["NUMBER", "parse", "shortest"]

NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""A decimal number as a regular expression that JSON schemas understand too."""

# Python's float() alone would also take blanks, underscores and digits of other scripts.
_NUMBER = re.compile(rf"{NUMBER}|[+-]?(?i:nan|inf|infinity)")


def parse(text: str) -> float | None:
    """Read a decimal number; None if the text is not one.

    The words `nan`, `inf` and `infinity` and numbers too large for a float come back as non-finite
    values, so that the caller can say which of the two was wrong.
    """
    if _NUMBER.fullmatch(text) is None:
        return None
    return float(text)


def shortest(value: float) -> str:
    """Write a finite number with the fewest digits that read back equal, no exponent, no trailing `.0`."""
    text = repr(value)
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")
