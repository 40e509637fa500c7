"""Schemas of a schema registry, and how records name the schema with which they were written.

A record names its schema in one of two places. The first bytes of the value or the key can be a
zero byte and the schema's id. Or a header contains these bytes, or a byte of 1 and the schema's
GUID.
"""

from __future__ import annotations

import struct
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

SchemaKind: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]
SchemaRef: TypeAlias = int | UUID
"""The id or the GUID of a schema. Both always mean the same schema."""
VALUE_HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"
PREFIX_BYTES = 5
"""The number of bytes before the value that name its schema."""
_BY_ID, _BY_GUID = 0, 1
_PREFIX = struct.Struct(">BI")


class ReferredSchema(msgspec.Struct, frozen=True):
    """A schema to which another one refers."""

    name: str
    """The name by which the other schema refers to it: a type in Avro, a file in Protobuf, an
    address in JSON Schema."""
    text: str


class RegisteredSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema in the form in which the registry returns it."""

    id: int
    text: str
    kind: SchemaKind = "AVRO"
    subject: str = ""
    """One of the schema's subjects; empty if the registry did not say."""
    version: int = 0
    """The schema's version in the subject; 0 if the registry did not say."""
    guid: str = ""
    references: tuple[ReferredSchema, ...] = ()
    """The schemas to which this one refers. Each comes after its own references."""

    def __str__(self) -> str:
        if not self.subject:
            return f"schema {self.id}"
        return f"schema {self.id} ({self.subject}, version {self.version})"


class UnnamedSchemaError(ValueError):
    """A record does not name its schema."""


def prefix(schema_id: int) -> bytes:
    """Return the bytes that name a schema before a value."""
    return _PREFIX.pack(_BY_ID, schema_id)


def guid_header(guid: str) -> bytes:
    """Return the value of the header that names a schema by its GUID."""
    return bytes([_BY_GUID]) + UUID(guid).bytes


def named_schema(data: bytes, header: bytes | None = None) -> tuple[SchemaRef, int]:
    """Return the schema that a value or a key names, and the place at which its data begin.

    `header` is the value of the record's header for schemas. Raises UnnamedSchemaError.
    """
    if header is not None:
        return _of_header(header), 0
    if len(data) < PREFIX_BYTES or data[0] != _BY_ID:
        begin = data[:PREFIX_BYTES].hex(" ")
        raise UnnamedSchemaError(
            f"it begins with {begin or 'nothing'}, not with a zero byte and the id of a schema"
        )
    return _PREFIX.unpack_from(data)[1], PREFIX_BYTES


def _of_header(header: bytes) -> SchemaRef:
    bare = header
    # Protobuf's index of the first message (one byte) may follow.
    if len(header) in (PREFIX_BYTES + 1, 1 + 16 + 1):
        bare = header[:-1]
    if header[len(bare) :] in (b"", b"\0"):
        if len(bare) == PREFIX_BYTES and bare[0] == _BY_ID:
            schema_id: int = _PREFIX.unpack(bare)[1]
            return schema_id
        if len(bare) == 1 + 16 and bare[0] == _BY_GUID:
            return UUID(bytes=bare[1:])
    raise UnnamedSchemaError(
        f"the header of its schema is {header[:20].hex(' ')}, which is neither an id nor a GUID"
    )


def subject_of(topic: str, record: str, strategy: str, *, is_key: bool = False) -> str:
    """Return the subject that a strategy gives: `topic`, `record` or `topic_record`.

    `record` is the full name of the schema's record.
    """
    match strategy:
        case "record":
            return record
        case "topic_record":
            return f"{topic}-{record}"
        case _:
            return f"{topic}-{'key' if is_key else 'value'}"
