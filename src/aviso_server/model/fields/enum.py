"""EnumHandler: one of a list of words, in any letter case."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest
from aviso_server.model.constraint import MEMBERSHIP, Constraint
from aviso_server.model.decimal_text import parse
from aviso_server.model.fields.base import Field

__all__ = ["EnumField"]


@lru_cache(maxsize=4096)
def _lowered(values: tuple[str, ...]) -> frozenset[str]:
    return frozenset(value.lower() for value in values)


class EnumField(Field, frozen=True, kw_only=True):
    """One of a list of words; letter case does not matter, the canonical form is lower case."""

    values: tuple[str, ...]

    type_name: ClassVar[str] = "EnumHandler"
    accepts: ClassVar[str] = "one of the listed values, in any letter case; kept in lower case"
    example: ClassVar[Any] = "north"
    operators: ClassVar[tuple[str, ...]] = MEMBERSHIP
    widget: ClassVar[str] = "choice"
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        """The value in lower case."""
        lowered = text.lower()
        if lowered not in _lowered(self.values):
            raise InvalidRequest(
                f"Field '{name}' has invalid value '{text}'. Allowed: [{', '.join(self.values)}]", field=name
            )
        return lowered

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        """Every operand must be one of the values."""
        constraint = super().constraint(name, request)
        for operand in constraint.operands:
            self.canonical(name, operand)
        return constraint

    def sample(self) -> str:
        """The first value."""
        return next(iter(self.values), str(self.example))

    def value_schema(self) -> dict[str, Any]:
        """One of the values; those that look like a number or a truth value may be sent as one."""
        lowered = _lowered(self.values)
        others = [{"type": "boolean"}] if lowered & {"true", "false"} else []
        if any(parse(value) is not None for value in lowered):
            others.append({"type": "number"})
        return {"anyOf": [*self._texts(), *others]}

    def operand_schema(self) -> dict[str, Any]:
        """One of the values as text."""
        return {"anyOf": self._texts()}

    def _texts(self) -> list[dict[str, Any]]:
        if not self.values:
            return [{"not": {}}]
        return [{"enum": list(self.values)}, {"type": "string", "pattern": _any_case(self.values)}]


def _any_case(values: tuple[str, ...]) -> str:
    """A regular expression for the values in any letter case; JSON schemas have no flag for that."""
    if not all(value.isascii() for value in values):
        return "."
    return f"^(?:{'|'.join(''.join(map(_letter, value)) for value in values)})$"


def _letter(character: str) -> str:
    if not character.isalpha():
        return character if character.isalnum() else f"\\u{ord(character):04x}"
    kelvin = "\\u212a" if character in "kK" else ""  # the one other character whose lower case is ASCII
    return f"[{character.lower()}{character.upper()}{kelvin}]"
