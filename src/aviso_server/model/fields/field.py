"""The base of all identifier fields."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from aviso_server.errors import Problem
from aviso_server.model.constraint import Constraint, Kind, constraint_schema, read_constraint
from aviso_server.model.json_text import identifier_text
from aviso_server.model.shapes import MAX_LAT, MAX_LON, PointCloud, Polygon

__all__ = ["PAIR_SCHEMA", "Field", "SpatialField"]


PAIR_SCHEMA = {
    "type": "array",
    "prefixItems": [
        {"type": "number", "minimum": -MAX_LAT, "maximum": MAX_LAT},
        {"type": "number", "minimum": -MAX_LON, "maximum": MAX_LON},
    ],
    "minItems": 2,
    "maxItems": 2,
}
"""A JSON schema of [lat, lon]."""


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An identifier field of an event type: what it accepts and what it makes of it.

    The members of a subclass are the parameters of the field in a configuration file; their descriptions in
    the schema route, the OpenAPI document and the docs come from here.
    """

    required: bool
    description: str | None = None

    type_name: ClassVar[str]
    """The name under `type` in a configuration file."""
    accepts: ClassVar[str]
    """The accepted values, in words for people."""
    example: ClassVar[Any]
    """A value that a field without further limits accepts."""
    operators: ClassVar[tuple[str, ...]] = ()
    """The constraint operators that watch and replay may use on it."""
    kind: ClassVar[Kind] = "text"
    """The type that canonical texts are compared as, and the type of the column in Spark."""
    wildcard: ClassVar[bool] = False
    """True if the text `*` matches any value on watch and replay."""

    def canonical(self, name: str, text: str) -> str:
        """Return the one text that stands for this value everywhere; InvalidRequest if it is not acceptable."""
        raise NotImplementedError

    def accept(self, name: str, value: object) -> str:
        """Return the canonical text of a JSON value as a publisher sent it."""
        return self.canonical(name, value if type(value) is str else identifier_text(name, value))

    def constraint(self, name: str, request: dict[str, Any]) -> Constraint:
        """Read a constraint object of a watch or replay request and check its operands against this field."""
        return read_constraint(name, self.kind, self.operators, request)

    def problem(self) -> Problem | None:
        """Return what is wrong with the parameters, under the name of one of them; None if they are fine."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return the field as the schema route shows it: flat, unset parameters as null, no empty description."""
        shown: dict[str, Any] = {"type": self.type_name, **msgspec.structs.asdict(self)}
        if self.description is None:
            del shown["description"]
        return shown

    def sample(self) -> Any:
        """Return a value that this very field accepts."""
        return self.example

    def json_schema(self) -> dict[str, Any]:
        """Build a JSON schema that every acceptable published value satisfies, with words and an example."""
        words = "" if not self.description else self.description.rstrip(". ") + ". "
        return {"description": f"{words}Accepts {self.accepts}.", "examples": [self.sample()], **self.value_schema()}

    def filter_schema(self) -> dict[str, Any]:
        """Build a JSON schema that every acceptable value of a watch or replay request satisfies."""
        if not self.operators:
            return self.json_schema()
        return {"anyOf": [self.json_schema(), constraint_schema(self.operators, self.operand_schema())]}

    def value_schema(self) -> dict[str, Any]:
        """Build the bare JSON schema of a published value."""
        return {"type": ["string", "number", "boolean"]}

    def operand_schema(self) -> dict[str, Any]:
        """Build the JSON schema of what a constraint compares with."""
        return self.value_schema()


class SpatialField(Field, frozen=True, kw_only=True):
    """A field that says where a notification belongs on the map."""

    def locate(self, name: str, value: object, max_vertices: int) -> tuple[bytes, Polygon | PointCloud]:
        """Return the field's canonical JSON, every number a float, and its shape."""
        raise NotImplementedError
