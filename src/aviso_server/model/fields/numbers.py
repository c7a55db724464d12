"""Fields for numbers: IntHandler and FloatHandler."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model.constraint import COMPARISONS, Constraint, Kind
from aviso_server.model.fields.field import Field
from aviso_server.model.json_text import NUMBER, check_length, parse, quoted, shortest

__all__ = ["FloatField", "IntField"]


_INTEGER = r"[+-]?[0-9]+"
_DIGITS = re.compile(_INTEGER)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_TOO_MANY_DIGITS = 20  # for 64 bits


class _NumberField(Field, frozen=True, kw_only=True):
    range: tuple[Any, Any] | None = None

    operators: ClassVar[tuple[str, ...]] = COMPARISONS

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        constraint = super().constraint(name, request)
        if self.range is not None:  # there may be a hundred thousand operands
            for operand in constraint.operands:
                self._check_range(name, operand, operand)
        return constraint

    def problem(self) -> Problem | None:
        if self.range is not None and not -math.inf < self.range[0] <= self.range[1] < math.inf:
            return Problem("range", f"{list(self.range)} is not a range", "[min, max] with min <= max, both finite")
        return None

    def sample(self) -> Any:
        low, high = self.range or (self.example, self.example)
        return type(self.example)(max(low, min(high, self.example)))

    def _check_range(self, name: str, number: float, shown: object) -> None:
        if self.range is not None and not self.range[0] <= number <= self.range[1]:
            low, high = self.range
            raise InvalidRequest(f"Field '{name}' value {shown} is outside allowed range [{low}, {high}]", field=name)


class IntField(_NumberField, frozen=True, kw_only=True):
    """A whole number of 64 bits, optionally within a range (limits included)."""

    range: tuple[int, int] | None = None

    type_name: ClassVar[str] = "IntHandler"
    accepts: ClassVar[str] = "a whole number of 64 bits, within range if one is given (limits included)"
    example: ClassVar[Any] = 6
    kind: ClassVar[Kind] = "integer"

    def canonical(self, name: str, text: str) -> str:
        """Drop the plus sign and leading zeros."""
        check_length(name, text, self.accepts)
        if not _DIGITS.fullmatch(text):
            raise InvalidRequest(
                f"Field '{name}' must be an integer; got {quoted(text)}",
                "expected decimal digits with an optional sign" if text else "the text is empty",
                field=name,
            )
        significant = text.lstrip("+-").lstrip("0")[:_TOO_MANY_DIGITS] or "0"
        number = -int(significant) if text[0] == "-" else int(significant)
        if not _LOWEST <= number <= _HIGHEST:
            raise InvalidRequest(
                f"Field '{name}' must be an integer of 64 bits; got {quoted(text)}",
                f"the number does not lie in [{_LOWEST}, {_HIGHEST}]",
                field=name,
            )
        self._check_range(name, number, number)
        return str(number)

    def value_schema(self) -> dict[str, Any]:
        return {**self.operand_schema(), "type": ["integer", "string"], "pattern": f"^{_INTEGER}$"}

    def operand_schema(self) -> dict[str, Any]:
        return {"type": "integer", **_limits(self.range or (_LOWEST, _HIGHEST))}


class FloatField(_NumberField, frozen=True, kw_only=True):
    """A finite number, optionally within a range (limits included)."""

    range: tuple[float, float] | None = None

    type_name: ClassVar[str] = "FloatHandler"
    accepts: ClassVar[str] = "a finite number, within range if one is given (limits included)"
    example: ClassVar[Any] = 42.5
    kind: ClassVar[Kind] = "number"

    def canonical(self, name: str, text: str) -> str:
        """Return the shortest decimal that reads back as the same number, without exponent."""
        check_length(name, text, self.accepts)
        number = parse(text)
        if number is None or not math.isfinite(number):
            reason = "expected a decimal number" if number is None else "the number is not finite"
            raise InvalidRequest(
                f"Field '{name}' must be a finite number; got {quoted(text)}",
                reason if text else "the text is empty",
                field=name,
            )
        text = shortest(number)
        self._check_range(name, number, text)
        return text

    def value_schema(self) -> dict[str, Any]:
        return {**self.operand_schema(), "type": ["number", "string"], "pattern": f"^{NUMBER}$"}

    def operand_schema(self) -> dict[str, Any]:
        return {"type": "number", **_limits(self.range)}


def _limits(limits: tuple[Any, Any] | None) -> dict[str, Any]:
    """Write a range as members of a JSON schema; they bind numbers only, not their text."""
    return {} if limits is None else {"minimum": limits[0], "maximum": limits[1]}
