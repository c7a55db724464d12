"""IntHandler: a whole number of 64 bits."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model.constraint import COMPARISONS, Constraint, Kind
from aviso_server.model.fields.base import Field, check_operands, outside_range, within

__all__ = ["IntField"]

_INTEGER = r"[+-]?[0-9]+"
_DIGITS = re.compile(_INTEGER)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_DIGITS_OF_64_BITS = 19


class IntField(Field, frozen=True, kw_only=True):
    """A whole number of 64 bits, optionally within a range (limits included)."""

    range: tuple[int, int] | None = None

    type_name: ClassVar[str] = "IntHandler"
    accepts: ClassVar[str] = "a whole number of 64 bits, within range if one is given (limits included)"
    example: ClassVar[Any] = 6
    operators: ClassVar[tuple[str, ...]] = COMPARISONS
    kind: ClassVar[Kind] = "integer"
    widget: ClassVar[str] = "number"

    def canonical(self, name: str, text: str) -> str:
        """The number without plus sign and leading zeros."""
        if not _DIGITS.fullmatch(text):
            raise InvalidRequest(
                f"Field '{name}' must be an integer; got '{text}'",
                "expected decimal digits with an optional sign" if text else "the text is empty",
                field=name,
            )
        significant = text.lstrip("+-").lstrip("0")
        if len(significant) > _DIGITS_OF_64_BITS:
            number = _HIGHEST + 1
        else:
            number = -int(significant or "0") if text[0] == "-" else int(significant or "0")
        if not _LOWEST <= number <= _HIGHEST:
            raise InvalidRequest(
                f"Field '{name}' must be an integer of 64 bits; got '{text}'",
                f"the number does not lie in [{_LOWEST}, {_HIGHEST}]",
                field=name,
            )
        if self.range is not None and not self.range[0] <= number <= self.range[1]:
            raise outside_range(name, number, self.range)
        return str(number)

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        """Every operand must lie in the range, limits included."""
        return check_operands(name, super().constraint(name, request), self.range)

    def problem(self) -> Problem | None:
        """A range has its lower limit first."""
        if self.range is not None and self.range[0] > self.range[1]:
            return Problem("range", f"{list(self.range)} is no range", "[min, max] with min <= max")
        return None

    def sample(self) -> int:
        """The example, or the number of the range that is nearest to it."""
        low, high = self.range or (_LOWEST, _HIGHEST)
        return max(low, min(high, int(self.example)))

    def value_schema(self) -> dict[str, Any]:
        """A whole number or its text."""
        return {**self.operand_schema(), "type": ["integer", "string"], "pattern": f"^{_INTEGER}$"}

    def operand_schema(self) -> dict[str, Any]:
        """A whole number; text does not count."""
        return {"type": "integer", **within(self.range or (_LOWEST, _HIGHEST))}
