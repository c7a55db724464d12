"""StringHandler: text, kept as it is."""

from __future__ import annotations

from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest, Problem
from aviso_server.model.fields.base import Field

__all__ = ["StringField"]


class StringField(Field, frozen=True, kw_only=True):
    """Text that is kept as it is, with an optional limit in UTF-8 bytes."""

    max_length: int | None = None

    type_name: ClassVar[str] = "StringHandler"
    accepts: ClassVar[str] = "non-empty text of at most max_length UTF-8 bytes; kept unchanged"
    example: ClassVar[Any] = "enfo"
    wildcard: ClassVar[bool] = True

    def canonical(self, name: str, text: str) -> str:
        """The text itself."""
        if not text:
            raise InvalidRequest(f"Field '{name}' must not be empty", field=name)
        limit = self.max_length
        if limit is not None and len(text) * 4 > limit and len(text.encode()) > limit:
            raise InvalidRequest(
                f"Field '{name}' exceeds maximum length of {limit} bytes: got {len(text.encode())}", field=name
            )
        return text

    def problem(self) -> Problem | None:
        """A length limit must leave room for something."""
        if self.max_length is not None and self.max_length < 1:
            return Problem("max_length", f"{self.max_length} is out of range", "a whole number, 1 or more")
        return None

    def sample(self) -> str:
        """As much of the example as fits."""
        return str(self.example)[: self.max_length]

    def value_schema(self) -> dict[str, Any]:
        """Non-empty text; a JSON schema counts characters, of which there are never more than bytes."""
        limit = {} if self.max_length is None else {"maxLength": self.max_length}
        return {"type": ["string", "number", "boolean"], "minLength": 1, **limit}
