"""Encodes values and keys exactly with a schema of the registry, or raises an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.publish.avro_column_writer import record_part
from sluice.engine.publish.byte_columns import constant, joined
from sluice.engine.publish.column_parts import Part
from sluice.engine.publish.json_column_encoder import JsonColumnEncoder
from sluice.engine.publish.proto_column_writer import message_part
from sluice.engine.read.avro_columns import NotColumnarError
from sluice.engine.read.proto_messages import fill, index_bytes
from sluice.engine.read.registered_values import json_validator
from sluice.errors import EngineError
from sluice.registry.registry import Registry, UnknownSchemaError
from sluice.values import avro_schemas
from sluice.values.avro_schemas import Node, Primitive, Record, SchemaError
from sluice.values.avro_written import UnwritableError, Write, writer
from sluice.values.proto_descriptors import message_classes
from sluice.values.registered_schemas import RegisteredSchema, guid_header, prefix
from sluice.values.registry_formats import RegistryFormat
from sluice.values.schema_structs import SchemaText


@dataclass(frozen=True)
class RegisteredEncoder:
    """Encodes plain data with one schema."""

    schema: RegisteredSchema
    in_header: bool

    @property
    def header(self) -> bytes | None:
        """Return the value of the header that names the schema; None if the value names it."""
        if not self.in_header:
            return None
        place = self._message[1] if self.schema.kind == "PROTOBUF" else b""
        return guid_header(self.schema.guid) + place

    validates: bool = False
    record: str = ""
    """The name of the Protobuf message."""

    @property
    def takes_json(self) -> bool:
        """Return whether the encoder takes JSON, not plain data."""
        return self.schema.kind == "JSON"

    def __call__(self, value: Any) -> bytes:
        """Return the bytes of a value. Raises ValueError if the value does not fit the schema."""
        if self.takes_json:
            return self._with_prefix(value)
        if self.schema.kind == "PROTOBUF":
            return self._prefix + self._serialized(value)
        return self._prefix + self._written(value)

    def encode_texts(
        self, texts: pa.Array, one_by_one: Callable[[int, pa.Array], pa.Array]
    ) -> pa.Array:
        """Encode JSON texts, none of which is null. Return their bytes.

        `one_by_one` encodes the texts that cannot be encoded together, given the index of the first
        of them.
        """
        if self.takes_json and not self.validates:
            return joined([constant(self._prefix), texts.cast(pa.binary())], len(texts))
        if self.takes_json:
            return one_by_one(0, texts)
        return self._columns.encode(texts, one_by_one)

    @cached_property
    def _columns(self) -> JsonColumnEncoder:
        begin = self._prefix
        if self.schema.kind == "PROTOBUF" and not self.in_header:
            begin += self._message[1]
        return JsonColumnEncoder(self._part_of, constant(begin))

    def _part_of(self, sample: Any) -> Part:
        """Return the part that writes columns of this schema. Raises NotColumnarError."""
        if self.schema.kind == "PROTOBUF":
            return message_part(self._message[0].DESCRIPTOR, sample)
        if not isinstance(self._node, Record):
            raise NotColumnarError
        return record_part(self._node, sample)

    def _serialized(self, value: Any) -> bytes:
        kind, place = self._message
        message = kind()
        fill(message, value)
        data: bytes = message.SerializeToString(deterministic=True)
        return data if self.in_header else place + data

    @cached_property
    def _message(self) -> tuple[Any, bytes]:
        return index_bytes(message_classes(self.schema.text, self.schema.references), self.record)

    def encode_key(self, text: str) -> bytes:
        """Return the bytes of a key, which is a text inside a pipeline.

        Raises ValueError if the key does not fit the schema.
        """
        if self.takes_json:
            return self(msgspec.json.encode(text).decode() if self._is_text else text)
        if self._is_text:
            return self(text)
        try:
            return self(_decode(text))
        except msgspec.DecodeError:
            return self(text)  # The schema is an enum, or its type is not a text.

    @cached_property
    def _is_text(self) -> bool:
        """Return whether all values of the schema are texts."""
        schema = SchemaText(self.schema.kind, self.schema.text, self.schema.references)
        return schema.kind != "PROTOBUF" and schema.node == Primitive("string")

    def _with_prefix(self, text: str) -> bytes:
        data = text.encode()
        if self.validates:
            problem = self._problem(data)
            if problem:
                raise UnwritableError(problem)
        return self._prefix + data

    @cached_property
    def _problem(self) -> Callable[[bytes], str]:
        return json_validator(self.schema)

    def require_usable(self) -> None:
        """Raise SchemaError if values cannot be written with the schema."""
        if self.takes_json:
            assert not self.validates or self._problem is not None
        elif self.schema.kind == "PROTOBUF":
            assert self._message is not None
        else:
            assert self._written is not None

    @cached_property
    def _prefix(self) -> bytes:
        return b"" if self.in_header else prefix(self.schema.id)

    @cached_property
    def _node(self) -> Node:
        return avro_schemas.parse(self.schema.text, self.schema.references)

    @cached_property
    def _written(self) -> Write:
        return writer(self._node)


_decode = msgspec.json.Decoder().decode


def encoder_of(values: RegistryFormat, topic: str, registry: Registry) -> RegisteredEncoder:
    """Return the encoder of a topic's values.

    Raises EngineError if the registry lacks the schema, and RegistryAway.
    """
    schema = schema_to_write(values, topic, registry)
    if values.schema_in == "header" and not schema.guid:
        raise EngineError(
            f"The registry has no GUID for {schema}, but records of {topic} name their schema by "
            "its GUID, in a header.",
            next_step='Write schema_in="prefix", or use a registry that has GUIDs.',
        )
    try:
        encoder = RegisteredEncoder(
            schema, values.schema_in == "header", values.validates, values.record
        )
        encoder.require_usable()
    except SchemaError as error:
        raise EngineError(
            f"{topic} cannot be written with {schema}: {error}.",
            next_step="Choose another version of the subject.",
        ) from None
    return encoder


def schema_to_write(values: RegistryFormat, topic: str, registry: Registry) -> RegisteredSchema:
    """Return the schema for writing a topic."""
    subject = values.subject_in(topic)
    try:
        if values.metadata:
            return registry.with_metadata(subject, dict(values.metadata))
        if values.version is not None:
            return registry.version(subject, values.version)
    except UnknownSchemaError as error:
        raise EngineError(
            f"The registry does not have the version of {subject} with which {topic} is written: "
            f"{error}.",
            next_step=f"Register the version. To see the latest: sluice schema pull {subject}.",
        ) from None
    found = schema_in_registry(values, subject, registry)
    if found is not None:
        return found
    if values.registers:
        return registry.register(subject, values.schema, values.kind)
    raise EngineError(
        f"The subject {subject} in the registry does not have the schema with which the pipeline "
        f"writes {topic}.",
        next_step="Register the schema: sluice schema push PIPELINE. Or write with a version that "
        'the subject has: version="latest".',
    )


def schema_in_registry(
    values: RegistryFormat, subject: str, registry: Registry
) -> RegisteredSchema | None:
    """Return the version of the subject that equals the format's own schema, or None."""
    if values.pulled:
        # A registry finds a schema that refers to other schemas only if the request names them,
        # too.
        with suppress(UnknownSchemaError):
            pulled = registry.version(subject, values.pulled)
            if pulled.text == values.schema:
                return pulled
    return registry.find(subject, values.schema, values.kind)
