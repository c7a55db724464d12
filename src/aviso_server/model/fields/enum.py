"""EnumHandler: one of a list of words, in any letter case."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest
from aviso_server.model.constraint import MEMBERSHIP, Constraint
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
