"""What a key accepts: the annotations that settings carry."""

from __future__ import annotations

import msgspec

__all__ = ["Duration", "Secret", "Text", "Whole"]


class Whole(msgspec.Struct, frozen=True):
    """A whole number within limits, both included."""

    minimum: int = 0
    maximum: int = 2**63 - 1

    @property
    def accepted(self) -> str:
        """The limits in words."""
        if self.maximum == 2**63 - 1:
            return "a whole number" if self.minimum < 0 else f"a whole number, {self.minimum} or more"
        return f"a whole number from {self.minimum} to {self.maximum}"


class Duration(msgspec.Struct, frozen=True):
    """A length of time above zero with its unit, kept as nanoseconds."""


class Text(msgspec.Struct, frozen=True):
    """Text, perhaps neither blank nor with blanks around it."""

    blank: bool = True
    padded: bool = True


class Secret(str):
    """Text that never shows in a log or a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[REDACTED]'"
