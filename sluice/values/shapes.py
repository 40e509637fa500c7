"""The shape of a value: an object with fields, or a single value."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.values.json_text import JSON_FIELD
from sluice.values.record_metadata import TEXT_FIELD
from sluice.values.sql_text import value_of_json
from sluice.values.sql_types import struct_fields, struct_type


@dataclass(frozen=True)
class Shape:
    """A value's fields with their Spark SQL types; an empty string if a type is unknown."""

    fields: dict[str, str]
    scalar: bool = False
    """True if the value is not an object. Its only field, `value`, is then the value itself.

    An object can also have `value` as its only field. Only this flag tells such an object from a
    scalar.
    """

    @classmethod
    def single(cls, kind: str = "") -> Shape:
        """Return the shape of a value that is not an object."""
        return cls({TEXT_FIELD: kind}, scalar=True)

    @classmethod
    def of_kind(cls, kind: str) -> Shape:
        """Return the shape of a value of this Spark SQL type.

        An empty text means an unknown type.
        """
        fields = struct_fields(kind)
        # A value of type Any is not an object in SQL, although it is stored as one.
        if fields and JSON_FIELD not in fields:
            return cls(fields)
        return cls.single(kind)

    @property
    def kind(self) -> str:
        """The Spark SQL type of the whole value.

        A part of an unknown type has an empty text as its type.
        """
        if self.scalar:
            return self.fields[TEXT_FIELD]
        return struct_type(self.fields) if self.fields else ""

    def value_sql(self, text: str) -> str:
        """Return SQL for the value of JSON of this shape.

        A single value of an unknown type becomes a VARIANT.
        """
        if not self.scalar:
            return value_of_json(text, self.kind)
        if not self.kind:
            return f"parse_json({text})"
        # Spark parses JSON to a declared type only for objects, so wrap the text in an object.
        wrapped = f"concat('{{\"v\":', {text}, '}}')"
        return f"{value_of_json(wrapped, struct_type({'v': self.kind}))}.v"
