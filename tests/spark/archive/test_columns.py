"""The columns of archived files: polygons are polygons, in whatever form the log holds them."""

from __future__ import annotations

import pyarrow as pa

from aviso_server.lake.schema import FileShape
from aviso_server.model.batch import STORED, columns_of, record_batch
from aviso_server.model.event_type import build_event_type
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import parse_polygon, with_text, wkb
from tests.spark.scene import CONFIGURATION, SQUARE, flood


def test_polygons_as_text_and_as_arrays_are_archived_alike() -> None:
    event_type, _ = build_event_type("flood", CONFIGURATION["notification_schema"]["flood"])
    assert event_type is not None
    draft = event_type.check(flood(3), 1)
    identifiers = [draft.identifier, with_text(draft.identifier)]
    assert identifiers[0] != identifiers[1]
    stored = [
        Notification(number, 10**18, draft.topic, identifier, b"1", draft.box)
        for number, identifier in enumerate(identifiers, 1)
    ]
    found = FileShape("flood", columns_of(event_type)).batch(record_batch(STORED, "flood", stored))
    assert found.column("polygon").to_pylist() == [wkb(parse_polygon(SQUARE))] * 2
    assert found.column("identifier").to_pylist() == [draft.identifier.decode()] * 2
    assert found.column("identifier").type == pa.string()
