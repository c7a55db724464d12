"""ExpverHandler: an experiment version."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from aviso_server.errors import InvalidRequest
from aviso_server.model.fields.base import Field

__all__ = ["ExpverField"]

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
        """At least four digits, or the word in lower case; the default for the empty text."""
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
        """Any text; only a default makes the empty one acceptable."""
        return {"type": ["string", "number", "boolean"], "minLength": 0 if self.default else 1}
