"""The identifier field types; a new one is a class and one line here."""

from __future__ import annotations

from aviso_server.model.fields.areas import PointCloudField, PolygonField
from aviso_server.model.fields.dates import DateField, TimeField
from aviso_server.model.fields.field import Field, SpatialField
from aviso_server.model.fields.numbers import FloatField, IntField
from aviso_server.model.fields.texts import EnumField, ExpverField, StringField

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
