"""Reading the metrics of a server under test."""

from __future__ import annotations

import socket
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.client import Client
from tests.harness.server import Server

__all__ = ["Scrape", "free_port", "scrape", "with_metrics"]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def with_metrics(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with a metrics port of its own."""
    return {**config, "metrics": {"enabled": True, "port": free_port()}}


class Scrape:
    """All samples at one moment."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The value of exactly this series; it must be there."""
        return self.samples[name, frozenset(labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series of the name that have these labels among theirs."""
        wanted = set(labels.items())
        return sum(value for (found, has), value in self.samples.items() if found == name and wanted <= has)

    def labels(self, name: str, label: str) -> set[str]:
        """The values that a label has."""
        return {dict(has)[label] for found, has in self.samples if found == name}


def scrape(server: Server, port: int) -> Scrape:
    """The metrics of the server now."""
    response = Client(server.host, port).get("/metrics")
    assert response.status == 200, response.body.decode()
    return Scrape(response.body.decode())
