"""A stand-in for an ECPDS server: which destinations belong to whom."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.harness.web_service import Asked, Said, WebService

__all__ = ["PASSWORD", "USERNAME", "FakeEcpds"]

USERNAME = "aviso"
PASSWORD = "what-ecpds-knows-us-by"


class FakeEcpds(WebService):
    """Answers `/ecpds/v1/destination/list?id=<user>` to those who know its password."""

    def __init__(self, destinations: dict[str, list[Any]] | None = None) -> None:
        super().__init__(self.usual)
        self.destinations = destinations or {}
        self.delay = 0.0  # seconds before it answers
        self.users: list[str] = []  # who was asked about

    def usual(self, asked: Asked) -> Said:
        """What it says unless a test sets `answer`."""
        parts = urlsplit(asked.path)
        expected = "Basic " + base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
        if parts.path != "/ecpds/v1/destination/list" or asked.headers.get("authorization") != expected:
            return Said(404 if parts.path != "/ecpds/v1/destination/list" else 401)
        (user,) = parse_qs(parts.query, strict_parsing=True)["id"]
        self.users.append(user)
        time.sleep(self.delay)
        records = [
            {"name": each, "active": True, "comment": "x"} if isinstance(each, str) else each
            for each in self.destinations.get(user, [])
        ]
        return Said(200, json.dumps({"success": "yes", "destinationList": records}).encode())
