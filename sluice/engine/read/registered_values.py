"""Decodes values with schemas in a schema registry, one by one, each by its writer's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import urljoin

import msgspec

from sluice.engine.read.avro_data import AvroDataError, read_whole, value_reader
from sluice.engine.read.proto_messages import plain_reader, read_indexes
from sluice.errors import RegistryAway, error_text, missing_extra
from sluice.plan import Source
from sluice.registry.registry import Registry, UnknownSchemaError
from sluice.values import avro_schemas, stored_values
from sluice.values.avro_schemas import Node, SchemaError
from sluice.values.avro_values import (
    Aliases,
    MismatchError,
    converter,
    natural,
    unchanged,
)
from sluice.values.contracts import type_info
from sluice.values.headers import decode_headers
from sluice.values.json_schemas import identifier_of
from sluice.values.keys import key_text
from sluice.values.proto_descriptors import message_class, message_classes, node_of
from sluice.values.registered_schemas import (
    KEY_HEADER,
    VALUE_HEADER,
    RegisteredSchema,
    SchemaRef,
    UnnamedSchemaError,
    named_schema,
)
from sluice.values.registry_formats import RegistryFormat


class RejectedValueError(ValueError):
    """A value that cannot be read. `reason` is the reason in the dead letter of its record."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


Reader: TypeAlias = Callable[[bytes, int], Any]
"""Reads a value that begins at a place of these bytes."""


@dataclass
class RegisteredValues:
    """Reads the values of one source."""

    source: Source
    format: RegistryFormat
    registry: Registry
    _at_hand: dict[SchemaRef, Reader | RejectedValueError] = field(default_factory=dict, init=False)
    """The readers of the batch's schemas."""

    def schemas_of(
        self, raw: Sequence[bytes | None], headers: Sequence[str | None] | None
    ) -> list[tuple[SchemaRef, int] | Exception | None]:
        """Return the schema that each value names, and the place where its data begin.

        Return the error of a value that names no schema, and None for a null value. Gets unknown
        schemas from the registry. Raises RegistryAway.
        """
        places: list[tuple[SchemaRef, int] | Exception | None] = []
        refs: dict[SchemaRef, None] = {}
        for number, data in enumerate(raw):
            if data is None:
                places.append(None)
                continue
            text = headers[number] if headers is not None else None
            try:
                place = named_schema(data, schema_header(text, VALUE_HEADER))
            except UnnamedSchemaError as error:
                places.append(RejectedValueError("no_schema", str(error)))
                continue
            refs[place[0]] = None
            places.append(place)
        self._at_hand = {ref: self.reader(ref) for ref in refs}
        return places

    def reader_known(self, ref: SchemaRef) -> Reader:
        """Return the reader for a schema that `schemas_of` has returned.

        Raises an error if no value with this schema can be read.
        """
        reader = self._at_hand[ref]
        if isinstance(reader, RejectedValueError):
            raise reader
        return reader

    @cached_property
    def _readers(self) -> dict[SchemaRef, Reader | RejectedValueError]:
        return {}

    @cached_property
    def _schemas(self) -> dict[SchemaRef, RegisteredSchema]:
        return {}

    def schema(self, ref: SchemaRef) -> RegisteredSchema:
        """Return a schema. Raises UnknownSchemaError and RegistryAway."""
        if ref not in self._schemas:
            subject = self.format.subject_in(self.source.topic)
            self._schemas[ref] = self.registry.schema(ref, subject)
        return self._schemas[ref]

    def reader(self, ref: SchemaRef) -> Reader | RejectedValueError:
        """Return the reader of values with a schema, or an error if none of them can be read.

        Raises RegistryAway.
        """
        if ref not in self._readers:
            try:
                self._readers[ref] = self._new_reader(self.schema(ref))
            except UnknownSchemaError:
                # The registry may get the schema later, so do not cache the error.
                return RejectedValueError("unknown_schema", f"the registry has no schema {ref}")
            except (SchemaError, MismatchError) as error:
                problem = f"{error_text(error)} - in {self.schema(ref)}"
                self._readers[ref] = RejectedValueError("schema", problem)
        return self._readers[ref]

    def _new_reader(self, schema: RegisteredSchema) -> Reader:
        if schema.kind != self.format.kind:
            raise SchemaError(f"it is a schema of {schema.kind}, not of {self.format.kind}")
        if schema.kind == "JSON":
            return JsonReader(schema, self.source.value_type, validates=self.format.validates).read
        if schema.kind == "PROTOBUF":
            return ProtoReader(schema, self.source.value_type).read
        node = avro_schemas.parse(schema.text, schema.references)
        return AvroReader(schema, node, self.source.value_type, Aliases.of(self.format)).read


KeyReader: TypeAlias = Callable[[bytes, bool], str | None]
"""Reads a key as a text: see `plain_values`."""


@dataclass
class RegisteredKeys:
    """Reads the keys of one source as texts."""

    topic: str
    format: RegistryFormat
    registry: Registry
    _texts: dict[SchemaRef, Callable[[bytes, bool], str | None]] = field(
        default_factory=dict, init=False
    )

    def decode(
        self, raw: Sequence[bytes | None], headers: Sequence[str | None] | None
    ) -> Iterator[str | BaseException | None]:
        """Yield the text of each key, or the error of a key that cannot be read.

        Raises RegistryAway.
        """
        for number, data in enumerate(raw):
            if data is None:
                yield None
                continue
            header = None if headers is None else schema_header(headers[number], KEY_HEADER)
            try:
                ref, begin = named_schema(data, header)
                yield self._text_of(ref)(data[begin:], not begin)
            except RegistryAway:
                raise
            except UnknownSchemaError:
                yield RejectedValueError("unknown_schema", f"the registry has no schema {ref}")
            except Exception as error:
                yield error

    def _text_of(self, ref: SchemaRef) -> KeyReader:
        if ref not in self._texts:
            schema = self.registry.schema(ref, self.format.subject_in(self.topic))
            if schema.kind != self.format.kind:
                wanted = self.format.kind
                raise SchemaError(f"{schema} is a schema of {schema.kind}, not of {wanted}")
            read = plain_values(schema)

            def text(data: bytes, is_whole: bool) -> str | None:
                try:
                    return key_text(read(data, is_whole))
                except (ValueError, msgspec.DecodeError) as error:
                    detail = f"{error_text(error)} - by {schema}"
                    raise RejectedValueError("malformed", detail) from None

            self._texts[ref] = text
        return self._texts[ref]


def plain_values(schema: RegisteredSchema) -> Callable[[bytes, bool], Any]:
    """Return the function that reads a value of a schema as plain data, without a contract.

    The function takes the bytes, and whether a header names the schema: then, Protobuf's bytes do
    not name their message. The function raises ValueError or DecodeError. Raises SchemaError.
    """
    if schema.kind == "JSON":
        return lambda data, _: msgspec.json.decode(data)
    if schema.kind == "AVRO":
        node = avro_schemas.parse(schema.text, schema.references)
        read, convert = value_reader(node), natural(node)
        return lambda data, _: convert(read_whole(read, data))
    from google.protobuf.message import DecodeError

    classes = message_classes(schema.text, schema.references)

    def of_message(data: bytes, is_whole: bool) -> Any:
        places, at = ((0,), 0) if is_whole else read_indexes(data, 0)
        found = message_class(classes, places)
        try:
            plain = plain_reader(found.DESCRIPTOR)(found.FromString(data[at:]))
        except DecodeError as error:
            raise ValueError(error) from None
        return natural(node_of(found.DESCRIPTOR))(plain)

    return of_message


class ContractValues:
    """Converts values as written with a writer's schema to values of the contract.

    Raises MismatchError if the schema cannot be resolved against the contract.
    """

    def __init__(
        self, schema: RegisteredSchema, node: Node, contract: Any, aliases: Aliases
    ) -> None:
        self._schema = schema
        self._contract = contract
        self._convert = converter(node, type_info(contract), aliases)
        self._is_stored = stored_values.is_converted(contract)

    @cached_property
    def _decode_stored(self) -> Callable[[bytes], Any]:
        return stored_values.topic_decoder(self._contract)

    def of(self, written: Any) -> Any:
        """Return the value. Raises RejectedValueError."""
        try:
            plain = written if self._convert is unchanged else self._convert(written)
            if self._is_stored:
                return self._decode_stored(_encode(plain))
            return msgspec.convert(plain, self._contract)
        except (ValueError, msgspec.ValidationError) as error:
            detail = f"{error_text(error)} - by {self._schema}"
            raise RejectedValueError("contract", detail) from None


class AvroReader:
    """Reads Avro with one writer's schema, and returns values of the contract.

    Raises SchemaError or MismatchError if the schema cannot be resolved against the contract.
    """

    def __init__(
        self, schema: RegisteredSchema, node: Node, contract: Any, aliases: Aliases
    ) -> None:
        self._schema = schema
        self._values = ContractValues(schema, node, contract, aliases)
        self._read = value_reader(node)

    def read(self, data: bytes, begin: int) -> Any:
        """Read a value. Raises RejectedValueError."""
        try:
            written = read_whole(self._read, data, begin)
        except AvroDataError as error:
            raise RejectedValueError("malformed", f"{error} - by {self._schema}") from None
        return self._values.of(written)


class ProtoReader:
    """Reads messages with one writer's schema, and returns values of the contract.

    Raises SchemaError or MismatchError if no message of the schema can be resolved against the
    contract.
    """

    def __init__(self, schema: RegisteredSchema, contract: Any) -> None:
        self._schema = schema
        self._contract = contract
        self._classes = message_classes(schema.text, schema.references)
        self._readers: dict[tuple[int, ...], Callable[[bytes], Any]] = {}
        problems: list[MismatchError] = []
        for number in range(len(self._classes)):
            try:
                self._reader((number,))
            except MismatchError as error:
                problems.append(error)
        if len(problems) == len(self._classes) and problems:
            raise problems[0]

    def read(self, data: bytes, begin: int) -> Any:
        """Read a value. Raises RejectedValueError."""
        from google.protobuf.message import DecodeError

        try:
            places, at = read_indexes(data, begin) if begin else ((0,), 0)
            return self._reader(places)(data[at:])
        except MismatchError as error:
            raise RejectedValueError("schema", f"{error} - in {self._schema}") from None
        except RejectedValueError:
            raise
        except (DecodeError, ValueError) as error:
            raise RejectedValueError("malformed", f"{error} - by {self._schema}") from None

    def _reader(self, places: tuple[int, ...]) -> Callable[[bytes], Any]:
        if places not in self._readers:
            found = message_class(self._classes, places)
            descriptor = found.DESCRIPTOR
            values = ContractValues(self._schema, node_of(descriptor), self._contract, Aliases())
            plain = plain_reader(descriptor)

            def read(data: bytes) -> Any:
                return values.of(plain(found.FromString(data)))

            self._readers[places] = read
        return self._readers[places]


_encode = msgspec.json.Encoder(decimal_format="number").encode


class JsonReader:
    """Reads JSON as values of the contract. The engine checks their JSON like other JSON."""

    def __init__(self, schema: RegisteredSchema, contract: Any, *, validates: bool) -> None:
        self._schema = schema
        self._decode: Callable[[bytes], Any] = (
            bytes.decode if contract is str else stored_values.topic_decoder(contract)
        )
        self._problem = json_validator(schema) if validates else None

    def read(self, data: bytes, begin: int) -> Any:
        text = data[begin:]
        if self._problem is not None:
            problem = self._problem(text)
            if problem:
                raise RejectedValueError("contract", f"{problem} - by {self._schema}")
        return self._decode(text)


def json_validator(schema: RegisteredSchema) -> Callable[[bytes], str]:
    """Return the function that describes how JSON violates a schema; empty if it is valid.

    Raises SchemaError for an invalid schema.
    """
    try:
        from jsonschema import exceptions, validators
        from referencing.exceptions import Unresolvable
    except ImportError as error:
        raise missing_extra(error) from None
    try:
        declared = json.loads(schema.text)
        kind = validators.validator_for(declared)
        kind.check_schema(declared)
    except (ValueError, exceptions.SchemaError) as error:
        raise SchemaError(f"the schema is invalid: {error_text(error).splitlines()[0]}") from None
    validator = kind(
        declared,
        registry=_referred_schemas(schema, declared),
        format_checker=kind.FORMAT_CHECKER,
    )

    def problem_of_json(text: bytes) -> str:
        try:
            value = json.loads(text)
        except ValueError as error:
            return f"it is no JSON: {error}"
        try:
            found = exceptions.best_match(validator.iter_errors(value))
        except Unresolvable as error:
            return f"the schema refers to {error.ref}, which it lacks"
        return "" if found is None else f"{found.json_path}: {found.message[:300]}"

    return problem_of_json


def _referred_schemas(schema: RegisteredSchema, declared: Any) -> Any:
    """Return each address that the JSON Schema may use → the schema that it refers to."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT7

    base = identifier_of(declared)
    resources: dict[str, Any] = {}
    for each in schema.references:
        contents = json.loads(each.text)
        resource = DRAFT7.create_resource(contents)
        if isinstance(contents, dict) and "$schema" in contents:
            resource = resource.from_contents(contents)
        for address in (each.name, urljoin(base, each.name), identifier_of(contents)):
            resources[address] = resource
    resources.pop("", None)
    return Registry().with_resources(resources.items())


def schema_header(headers: str | None, name: str) -> bytes | None:
    """Return the last header of this name, given a record's headers as JSON; None if missing."""
    if not headers or name not in headers:
        return None
    found: bytes | None = None
    for each in decode_headers(headers):
        if each.key == name:
            found = each.value
    return found
