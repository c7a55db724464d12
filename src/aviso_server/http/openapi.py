"""The OpenAPI document of this server."""

from __future__ import annotations

from typing import Any

from aviso_server import __version__
from aviso_server.model.schema import Catalogue

__all__ = ["document"]


def document(catalogue: Catalogue) -> dict[str, Any]:
    """The document for these event types."""
    return {"openapi": "3.1.0", "info": {"title": "Aviso Notification Service API", "version": __version__}}
