"""FloatHandler: a finite decimal number."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model.constraint import COMPARISONS, Constraint, Kind
from aviso_server.model.decimal_text import NUMBER, parse, shortest
from aviso_server.model.fields.base import Field, check_operands, outside_range, within

__all__ = ["FloatField"]


class FloatField(Field, frozen=True, kw_only=True):
    """A finite number, optionally within a range (limits included)."""

    range: tuple[float, float] | None = None

    type_name: ClassVar[str] = "FloatHandler"
    accepts: ClassVar[str] = "a finite number, within range if one is given (limits included)"
    example: ClassVar[Any] = 42.5
    operators: ClassVar[tuple[str, ...]] = COMPARISONS
    kind: ClassVar[Kind] = "number"
    widget: ClassVar[str] = "number"

    def canonical(self, name: str, text: str) -> str:
        """The shortest decimal that reads back as the same number, without exponent."""
        number = parse(text)
        if number is None or not math.isfinite(number):
            reason = "expected a decimal number" if number is None else "the number is not finite"
            raise InvalidRequest(
                f"Field '{name}' must be a finite number; got '{text}'",
                reason if text else "the text is empty",
                field=name,
            )
        if self.range is not None and not self.range[0] <= number <= self.range[1]:
            raise outside_range(name, shortest(number), self.range)
        return shortest(number)

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        """Every operand must lie in the range, limits included."""
        return check_operands(name, super().constraint(name, request), self.range)

    def problem(self) -> Problem | None:
        """A range is finite and has its lower limit first."""
        if self.range is not None and not (
            all(math.isfinite(limit) for limit in self.range) and self.range[0] <= self.range[1]
        ):
            return Problem("range", f"{list(self.range)} is no range", "[min, max] with min <= max, both finite")
        return None

    def sample(self) -> float:
        """The example, or the number of the range that is nearest to it."""
        return float(self.example if self.range is None else max(self.range[0], min(self.range[1], self.example)))

    def value_schema(self) -> dict[str, Any]:
        """A number or its text."""
        return {**self.operand_schema(), "type": ["number", "string"], "pattern": f"^{NUMBER}$"}

    def operand_schema(self) -> dict[str, Any]:
        """A number; text does not count."""
        return {"type": "number", **within(self.range)}
