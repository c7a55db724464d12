"""The identifier field types, one file each; a new one is added by its file and one line here."""

from __future__ import annotations

from aviso_server.model.fields.base import Field, SpatialField
from aviso_server.model.fields.date import DateField
from aviso_server.model.fields.enum import EnumField
from aviso_server.model.fields.expver import ExpverField
from aviso_server.model.fields.float import FloatField
from aviso_server.model.fields.integer import IntField
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.fields.polygon import PolygonField
from aviso_server.model.fields.string import StringField
from aviso_server.model.fields.time import TimeField

__all__ = ["FIELD_TYPES", "Field", "SpatialField"]

FIELD_TYPES: dict[str, type[Field]] = {
    field.type_name: field
    for field in (
        StringField,
        DateField,
        TimeField,
        EnumField,
        IntField,
        FloatField,
        ExpverField,
        PolygonField,
        PointCloudField,
    )
}
