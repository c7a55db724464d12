"""The last word on rows that Spark let through: areas exactly, and whatever their columns left in doubt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.model.columns import BOX
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Box, Notification
from aviso_server.pipeline.cold.filter_columns import Condition, Sight
from aviso_server.pipeline.cold.footers import WIDE
from aviso_server.pipeline.cold.shapes import NO, UNSURE, reach

__all__ = ["DOUBT", "Judge"]

DOUBT = "_doubt"
"""The column that says which rows are in doubt."""

_RING_HEAD, _CLOUD_HEAD, _PLACE = 13, 9, 21

Flags = npt.NDArray[np.bool_]


class Judge:
    """Decides for the rows of files that look the same."""

    def __init__(self, wanted: Filter, sight: Sight, condition: Condition) -> None:
        self._wanted = wanted
        self._sight = sight
        self._condition = condition

    def passed(self, table: pa.Table) -> pa.Table:
        """The notifications among the rows that the filter wants."""
        kept = np.ones(table.num_rows, dtype=np.bool_)
        for member in self._condition.members:
            kept &= pc.match_substring(table.column("identifier"), member).to_numpy(zero_copy_only=False)
        doubt = np.zeros(table.num_rows, dtype=np.bool_)
        if DOUBT in table.column_names:
            doubt |= pc.fill_null(table.column(DOUBT), True).to_numpy(zero_copy_only=False)
        for odd in self._condition.odd:
            doubt |= pc.match_substring_regex(table.column("identifier"), odd).to_numpy(zero_copy_only=False)
        if self._wanted.area is not None:
            answers = self._reached(table)
            kept &= answers != NO
            doubt |= answers == UNSURE
        for place in np.flatnonzero(kept & doubt).tolist():
            kept[place] = self._wanted.matches(self._notification(table, place))
        wide = table.select(WIDE)
        return wide if kept.all() else wide.filter(pa.array(kept))

    def _reached(self, table: pa.Table) -> npt.NDArray[np.int8]:
        """Where the first shape column has the shape that filters look at, it can be settled for all rows at once."""
        unsure = np.full(table.num_rows, UNSURE, dtype=np.int8)
        area, sight = self._wanted.area, self._sight
        shape = next((name for name in sight.shapes if name in ("polygon", "point_cloud")), None)
        if area is None or shape is None or sight.shapes[0] != shape or sight.boxes == "none" or not table.num_rows:
            return unsure
        answers = reach(table.column(shape).combine_chunks(), area)
        boxed = pc.is_valid(table.column(BOX[0].name)).to_numpy(zero_copy_only=False)
        return np.where(boxed, answers, unsure)

    def _notification(self, table: pa.Table, place: int) -> Notification:
        sequence, time, topic, identifier, payload = (table.column(name)[place].as_py() for name in WIDE)
        return Notification(sequence, time, topic, identifier.encode(), payload.encode(), self._box(table, place))

    def _box(self, table: pa.Table, place: int) -> Box | None:
        if self._sight.boxes == "none" or not table.column(BOX[0].name)[place].is_valid:
            return None
        shapes = (table.column(name)[place].as_py() for name in self._sight.shapes)
        return next((_box_around(shape) for shape in shapes if shape is not None), None)


def _box_around(shape: bytes) -> Box:
    """The box around a shape as well-known binary, which says x before y."""
    if shape[1] == 3:
        pairs = np.frombuffer(shape, dtype="<f8", offset=_RING_HEAD).reshape(-1, 2)
    else:
        places = np.frombuffer(shape, dtype=np.uint8, offset=_CLOUD_HEAD).reshape(-1, _PLACE)
        pairs = places[:, 5:].copy().view("<f8")
    (left, bottom), (right, top) = pairs.min(axis=0).tolist(), pairs.max(axis=0).tolist()
    return Box(bottom, left, top, right)
