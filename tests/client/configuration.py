"""The configuration of the servers that the published client talks to here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

__all__ = ["BACKENDS", "configuration"]

BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "in_memory": {"kind": "in_memory", "in_memory": {"max_history_per_topic": 10000, "max_topics": 10000}},
    "sqlite": {"kind": "sqlite", "sqlite": {"path": "log"}},
}

_BASE = """
application: {host: 127.0.0.1, port: 0, base_url: http://aviso.example}

notification_schema:
  storm:
    payload: {required: false}
    topic: {base: storm, key_order: [region, severity, anomaly, run_time, day]}
    identifier:
      region: {type: EnumHandler, values: [north, south, east, west], required: false}
      severity: {type: IntHandler, range: [1, 7], required: false}
      anomaly: {type: FloatHandler, range: [0, 100], required: false}
      run_time: {type: TimeHandler, required: false}
      day: {type: DateHandler, canonical_format: "%Y%m%d", required: false}

  # Stored under another name than its own.
  delivery:
    payload: {required: true}
    topic: {base: parcels, key_order: [customer, item]}
    identifier:
      customer: {type: StringHandler, max_length: 8, required: true, description: Who gets it}
      item: {type: IntHandler, required: false}

  # Nothing is required, so readers may ask for everything.
  tide:
    topic: {base: tide, key_order: [gauge]}
    identifier: {gauge: {type: StringHandler, required: false}}
  wave:
    topic: {base: wave, key_order: [gauge]}
    identifier: {gauge: {type: StringHandler, required: false}}

  area:
    topic: {base: area, key_order: [name]}
    identifier:
      name: {type: StringHandler, required: false}
      polygon: {type: PolygonHandler, required: false}

  buoys:
    topic: {base: buoys, key_order: [network]}
    identifier:
      network: {type: StringHandler, required: false}
      point_cloud: {type: PointCloudHandler, max_points: 3, required: true}
"""


def configuration(backend: str = "sqlite", **sections: Mapping[str, Any]) -> dict[str, Any]:
    """The event types above on a backend, with further top-level sections."""
    base: dict[str, Any] = yaml.safe_load(_BASE)
    return {**base, "notification_backend": BACKENDS[backend], **sections}
