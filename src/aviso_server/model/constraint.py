"""Constraints on a field: an operator and what it compares with."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.model.json_text import quoted

__all__ = ["COMPARISONS", "MEMBERSHIP", "Constraint", "Kind", "Operand", "constraint_schema", "read_constraint"]

Kind = Literal["integer", "number", "text"]
Operand = int | float | str

MEMBERSHIP = ("eq", "in")
COMPARISONS = ("eq", "in", "gt", "gte", "lt", "lte", "between")


class Constraint(msgspec.Struct, frozen=True):
    """One operator with its operands, tested against the value of a field."""

    kind: Kind
    operator: str
    operands: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        operands = self.operands
        match self.operator:
            case "eq":
                return bool(value == operands[0])
            case "in":
                return value in operands
            case "gt":
                return bool(value > operands[0])
            case "gte":
                return bool(value >= operands[0])
            case "lt":
                return bool(value < operands[0])
            case "lte":
                return bool(value <= operands[0])
            case _:
                return bool(operands[0] <= value <= operands[1])

    def interval(self) -> tuple[float, float]:
        """Return a closed interval that all satisfying numbers lie in; it may be wider than needed."""
        low, high = float("-inf"), float("inf")
        if self.operator in ("gt", "gte"):
            return float(self.operands[0]), high
        if self.operator in ("lt", "lte"):
            return low, float(self.operands[0])
        return float(min(self.operands)), float(max(self.operands))

    def __str__(self) -> str:
        shown = self.operands[0] if self.operator not in ("in", "between") else list(self.operands)
        return f"{self.operator} {shown}"


def read_constraint(name: str, kind: Kind, operators: tuple[str, ...], request: dict[str, Any]) -> Constraint:
    """Read a constraint object of a request; InvalidRequest names the field and what is accepted.

    The operands are checked for their JSON type here; whether they lie in the field's range is the field's business.
    """
    accepted = ", ".join(operators)
    if not operators:
        raise InvalidRequest(f"Field '{name}' does not support constraint objects; send a single value", field=name)
    if len(request) != 1:
        raise InvalidRequest(
            f"Field '{name}': a constraint object must contain exactly one operator ({accepted}); got {len(request)}",
            field=name,
        )
    ((operator, operand),) = request.items()
    if operator not in operators:
        raise InvalidRequest(
            f"Field '{name}': unknown constraint operator {quoted(operator)}; accepted: {accepted}", field=name
        )
    if operator == "in":
        if type(operand) is not list or not operand:
            raise InvalidRequest(f"Field '{name}': 'in' expects a non-empty array of {_NOUNS[kind]}", field=name)
        return Constraint(kind, operator, tuple([_operand(name, operator, kind, item) for item in operand]))
    if operator == "between":
        if type(operand) is not list or len(operand) != 2:
            raise InvalidRequest(f"Field '{name}': 'between' expects exactly two values [min, max]", field=name)
        low, high = (_operand(name, operator, kind, item) for item in operand)
        if low > high:  # type: ignore[operator]  # both have the type that kind says
            raise InvalidRequest(f"Field '{name}': 'between' expects min <= max; got [{low}, {high}]", field=name)
        return Constraint(kind, operator, (low, high))
    return Constraint(kind, operator, (_operand(name, operator, kind, operand),))


def constraint_schema(operators: tuple[str, ...], operand: dict[str, Any]) -> dict[str, Any]:
    """Build a JSON schema of the constraint objects with these operators."""
    shapes: dict[str, Any] = {
        "in": {"type": "array", "items": operand, "minItems": 1},
        "between": {"type": "array", "items": operand, "minItems": 2, "maxItems": 2},
    }
    return {
        "type": "object",
        "description": f"A constraint: exactly one operator out of {', '.join(operators)}.",
        "properties": {operator: shapes.get(operator, operand) for operator in operators},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }


_MOST_SHOWN = 80
_NOUNS = {"integer": "integers", "number": "numbers", "text": "strings"}


def _operand(name: str, operator: str, kind: Kind, value: object) -> Operand:
    # bool is a subclass of int, hence the exact types
    if kind == "integer" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind == "number" and (type(value) is float or type(value) is int):
        return float(value)  # compared as it is stored: as a double
    if kind == "text" and type(value) is str:
        return value.lower()
    raise InvalidRequest(
        f"Field '{name}': operator '{operator}' expects {_NOUNS[kind]}; got {_shown(value)}", field=name
    )


def _shown(value: object) -> str:
    """Write a value as JSON for an error message, of a long one only the start."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
