"""The configurations of the conformance cases: the files in `fixture/`, and one with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["BACKENDS", "changed", "conformance", "read"]

BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "in_memory": {"kind": "in_memory", "in_memory": {"max_history_per_topic": 100, "max_topics": 500}},
    "sqlite": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "jetstream": {"kind": "jetstream"},  # the address of a broker is added when it runs
}


def read(name: str) -> dict[str, Any]:
    """A configuration of `fixture/`."""
    configuration: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "fixture" / f"{name}.yaml").read_text())
    return configuration


def conformance(backend: str, changes: Mapping[str, Any] | None = None, without: Sequence[str] = ()) -> dict[str, Any]:
    """The conformance configuration on a backend, with changes merged in and some top-level keys left out."""
    configuration = changed(read("conformance"), {"notification_backend": BACKENDS[backend]})
    for key in without:
        del configuration[key]
    configuration = changed(configuration, changes or {})
    if backend == "jetstream":
        # There only the newest of a topic is kept unless the event type says otherwise.
        for name, entry in configuration.get("notification_schema", {}).items():
            if "topic" in entry:
                keep = changed({"storage_policy": {"allow_duplicates": True}}, entry)
                configuration = changed(configuration, {"notification_schema": {name: keep}})
    return configuration


def changed(configuration: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with the changes merged in, key by key."""
    merged = dict(configuration)
    for key, value in changes.items():
        before = merged.get(key)
        merged[key] = changed(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged
