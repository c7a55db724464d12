"""Fields for text: StringHandler, EnumHandler and ExpverHandler."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model.constraint import MEMBERSHIP, Constraint
from aviso_server.model.fields.field import Field
from aviso_server.model.json_text import parse, quoted

__all__ = ["EnumField", "ExpverField", "StringField"]


class StringField(Field, frozen=True, kw_only=True):
    """Text that is kept as it is, with an optional limit in UTF-8 bytes."""

    max_length: int | None = None

    type_name: ClassVar[str] = "StringHandler"
    accepts: ClassVar[str] = "non-empty text of at most max_length UTF-8 bytes; kept unchanged"
    example: ClassVar[Any] = "enfo"
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        if not text:
            raise InvalidRequest(f"Field '{name}' must not be empty", field=name)
        limit = self.max_length
        if limit is not None and len(text) * 4 > limit and len(text.encode()) > limit:
            raise InvalidRequest(
                f"Field '{name}' exceeds maximum length of {limit} bytes: got {len(text.encode())}", field=name
            )
        return text

    def problem(self) -> Problem | None:
        if self.max_length is not None and self.max_length < 1:
            return Problem("max_length", f"{self.max_length} is out of range", "a whole number, 1 or more")
        return None

    def sample(self) -> str:
        return str(self.example)[: self.max_length]

    def value_schema(self) -> dict[str, Any]:
        """Limit characters, which are all that JSON schemas count; there are never more of them than bytes."""
        limit = {} if self.max_length is None else {"maxLength": self.max_length}
        return {"type": ["string", "number", "boolean"], "minLength": 1, **limit}


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
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        lowered = text.lower()
        if lowered not in _lowered(self.values):
            raise InvalidRequest(
                f"Field '{name}' has invalid value {quoted(text)}. Allowed: [{', '.join(self.values)}]", field=name
            )
        return lowered

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        constraint = super().constraint(name, request)
        for operand in constraint.operands:
            self.canonical(name, operand)
        return constraint

    def sample(self) -> str:
        return next(iter(self.values), str(self.example))

    def value_schema(self) -> dict[str, Any]:
        """Allow numbers and truth values where one of the values looks like one."""
        lowered = _lowered(self.values)
        others = [{"type": "boolean"}] if lowered & {"true", "false"} else []
        if any(parse(value) is not None for value in lowered):
            others.append({"type": "number"})
        return {"anyOf": [*self._texts(), *others]}

    def operand_schema(self) -> dict[str, Any]:
        return {"anyOf": self._texts()}

    def _texts(self) -> list[dict[str, Any]]:
        if not self.values:
            return [{"not": {}}]
        return [{"enum": list(self.values)}, {"type": "string", "pattern": _any_case(self.values)}]


def _any_case(values: tuple[str, ...]) -> str:
    """Build a regular expression for the values in any letter case; JSON schemas have no flag for that."""
    if not all(value.isascii() for value in values):
        return "."
    return f"^(?:{'|'.join(''.join(map(_letter, value)) for value in values)})$"


def _letter(character: str) -> str:
    if not character.isalpha():
        return character if character.isalnum() else f"\\u{ord(character):04x}"
    kelvin = "\\u212a" if character in "kK" else ""  # the one other character whose lower case is ASCII
    return f"[{character.lower()}{character.upper()}{kelvin}]"


_UNSIGNED = re.compile(r"\+?[0-9]+")


class ExpverField(Field, frozen=True, kw_only=True):
    """An experiment version: a number padded to four digits, or a word in lower case."""

    default: str | None = None

    type_name: ClassVar[str] = "ExpverHandler"
    accepts: ClassVar[str] = (
        "a number up to 4294967295 (padded to four digits) or a word (lower-cased); empty text means the default"
    )
    example: ClassVar[Any] = "0001"
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        """Pad a number to four digits or lower a word; take the default for the empty text."""
        if not text:
            if not self.default:
                raise InvalidRequest(f"Field '{name}' must not be empty and has no default", field=name)
            text = self.default
        if _UNSIGNED.fullmatch(text):
            digits = text.lstrip("+").lstrip("0")
            if len(digits) <= 10 and int(digits or "0") < 2**32:
                return f"{digits:0>4}"
        return text.lower()

    def value_schema(self) -> dict[str, Any]:
        return {"type": ["string", "number", "boolean"], "minLength": 0 if self.default else 1}
