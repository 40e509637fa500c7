"""Formats whose schemas are in a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

from sluice.errors import TopologyError, sentence
from sluice.topology.pulled_schemas import pulled_schema
from sluice.topology.serdes import Serde
from sluice.values import contracts
from sluice.values.avro_schemas import (
    Node,
    Record,
    RecursiveSchemaError,
    SchemaError,
    parse,
    schema_of_contract,
)
from sluice.values.proto_schemas import proto_of_contract
from sluice.values.pydantic_models import is_model
from sluice.values.registry_formats import RegistryFormat, SchemaIn, Strategy, Version
from sluice.values.schema_structs import (
    SchemaText,
    aliases_of,
    enum_defaults_of,
    struct_of_schema,
)

V = TypeVar("V")
_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


@overload
def Avro(
    value: type[V],
    *,
    subject: str = ...,
    strategy: Strategy = ...,
    version: Version = ...,
    metadata: Mapping[str, str] | None = ...,
    schema_in: SchemaIn = ...,
    register: bool = ...,
    namespace: str = ...,
) -> Serde[V]: ...
@overload
def Avro(
    value: str | UnionType,
    *,
    subject: str = ...,
    strategy: Strategy = ...,
    version: Version = ...,
    metadata: Mapping[str, str] | None = ...,
    schema_in: SchemaIn = ...,
    register: bool = ...,
    namespace: str = ...,
) -> Serde[Any]: ...
def Avro(  # noqa: N802  (reads as a type)
    value: Any,
    *,
    subject: str = "",
    strategy: Strategy = "topic",
    version: Version = None,
    metadata: Mapping[str, str] | None = None,
    schema_in: SchemaIn = "prefix",
    register: bool = False,
    namespace: str = "",
) -> Serde[Any]:
    """Return a serde of values in Avro whose schemas are in a schema registry.

    `value` is the class of the values, such as `Avro(Order)`, or a subject, such as
    `Avro("orders-value")`. For a subject, the schema must be in the folder `schemas` beside the
    pipeline's file, where `sluice schema pull orders-value` writes it. Each record that is read is
    decoded by the schema that it names, and resolved against the class, as Avro resolves a writer's
    schema against a reader's.

    Records are written with the schema that follows from the class. The subject must have this
    schema: see `sluice schema push`. With `register=True`, a run registers the schema. `version` is
    a number or "latest", and `metadata` chooses the latest version with this metadata; records are
    then written with that version. By default, the subject is `TOPIC-value`. With
    `strategy="record"`, the subject is the record's name in the `namespace`; with `"topic_record"`,
    it is made of the topic's and the record's name. `subject` sets another subject. With
    `schema_in="header"`, written records name their schema in the header `__value_schema_id`.
    Records that are read may name their schema in this header or before the value.
    """
    chosen = RegistryFormat(
        kind="AVRO",
        subject=subject,
        strategy=strategy,
        version=version,
        metadata=dict(metadata or {}),
        schema_in=schema_in,
        registers=register,
    )
    if isinstance(value, str):
        return _of_subject("Avro", value, chosen)
    schema, record, problem, advice = "", "", "", ""
    contracts.sql_type(value)
    try:
        schema = schema_of_contract(value, namespace)
        node = parse(schema)
        record = _name_of(node)
    except TopologyError as error:
        # Values of such a class can still be read, but not written, because no schema can be
        # derived from the class.
        problem, advice = error.detail, error.next_step
    of_class = replace(chosen, schema=schema, problem=problem, advice=advice, record=record)
    return _serde(value, of_class)


def avro_key(
    kind: type[Any] = str,
    *,
    subject: str = "",
    strategy: Strategy = "topic",
    version: Version = None,
    schema_in: SchemaIn = "prefix",
    register: bool = False,
    namespace: str = "",
) -> Callable[[Any], Any]:
    """Return a format of keys in Avro, for `key=` of a source or of an output.

    Inside a pipeline, every key is text: a number becomes its digits, and a record becomes a JSON
    object. A key that is read is decoded by the schema that it names. A key that is written has the
    schema of `kind`: str, int, or a class of fields. The subject is `TOPIC-key`; the other
    parameters are the same as for `Avro`. The header for keys is `__key_schema_id`.
    """
    schema = schema_of_contract(kind, namespace)
    node = parse(schema)
    return RegistryFormat(
        kind="AVRO",
        schema=schema,
        record=_name_of(node),
        subject=subject,
        strategy=strategy,
        version=version,
        schema_in=schema_in,
        registers=register,
        is_key=True,
    )


def protobuf_key(
    kind: type[Any] | None = None,
    *,
    subject: str = "",
    strategy: Strategy = "topic",
    version: Version = None,
    schema_in: SchemaIn = "prefix",
    register: bool = False,
    package: str = "",
) -> Callable[[Any], Any]:
    """Return a format of keys in Protobuf, for `key=` of a source or of an output.

    Inside a pipeline, a key is the JSON of the message. A key that is written has the schema of the
    class `kind`, which is not needed to read keys. The other parameters are the same as for
    `avro_key`.
    """
    return RegistryFormat(
        kind="PROTOBUF",
        schema="" if kind is None else proto_of_contract(kind, package),
        record="" if kind is None else kind.__name__,
        subject=subject,
        strategy=strategy,
        version=version,
        schema_in=schema_in,
        registers=register,
        is_key=True,
    )


def json_schema_key(
    kind: type[Any] = str,
    *,
    subject: str = "",
    strategy: Strategy = "topic",
    version: Version = None,
    schema_in: SchemaIn = "prefix",
    register: bool = False,
) -> Callable[[Any], Any]:
    """Return a format of keys in JSON with a JSON Schema, for `key=` of a source or of an output.

    Inside a pipeline, a key is a text, as with `avro_key`, which has the same parameters.
    """
    return RegistryFormat(
        kind="JSON",
        schema=_json_schema_of("json_schema_key", kind),
        record=kind.__name__,
        subject=subject,
        strategy=strategy,
        version=version,
        schema_in=schema_in,
        registers=register,
        is_key=True,
    )


def _json_schema_of(called: str, value: Any) -> str:
    try:
        own = value.model_json_schema() if is_model(value) else msgspec.json.schema(value)
    except TypeError as error:
        raise TopologyError(
            f"{called}({contracts.name_of(value)}): {sentence(error)}",
            next_step="Declare the values as a class whose fields have types of JSON Schema.",
        ) from None
    # Some registries recognize a JSON Schema only by its `$schema`.
    declared = {"$schema": _JSON_SCHEMA, **_with_numbers(own)}
    return msgspec.json.encode(declared, order="sorted").decode()


def _of_subject(called: str, subject: str, chosen: RegistryFormat, message: str = "") -> Serde[Any]:
    """Return the serde of the values of a subject, whose schema has been pulled."""
    where = f"{called}({subject!r})"
    pulled = pulled_schema(where, subject)
    if pulled.kind != chosen.kind:
        raise TopologyError(
            f"{where}: {subject} has a schema of {pulled.kind}.",
            next_step="Use the serde of that format, or another subject.",
        )
    origin = SchemaText(pulled.kind, pulled.text, pulled.references, message)
    try:
        contract = struct_of_schema(origin)
        node = origin.node
    except RecursiveSchemaError as error:
        raise TopologyError(
            f"{where}: {error}.",
            next_step="Write a Serde whose decode function reads the values.",
        ) from None
    except SchemaError as error:
        raise TopologyError(
            f"{where}: {error}.",
            next_step="Declare a class with the fields that the pipeline reads, and write "
            f'{called}(MyClass, subject="{subject}").',
        ) from None
    of_schema = replace(
        chosen,
        schema=pulled.text,
        record=_name_of(node),
        subject=chosen.subject or subject,
        pulled=pulled.version,
        aliases=aliases_of(node),
        enum_defaults=enum_defaults_of(node),
        references=pulled.references,
        # A registry accepts a schema that refers to other schemas only together with their subjects
        # and versions.
        registers=chosen.registers and not pulled.references,
    )
    return _serde(contract, of_schema)


def _name_of(node: Node) -> str:
    """Return the name of a record; empty for another type."""
    if isinstance(node, Record):
        return node.name
    return ""


def _serde(contract: Any, serde_format: RegistryFormat) -> Serde[Any]:
    return Serde(contract, decode=serde_format, encode=serde_format)


@overload
def JsonSchema(
    value: type[V],
    *,
    subject: str = ...,
    strategy: Strategy = ...,
    version: Version = ...,
    metadata: Mapping[str, str] | None = ...,
    schema_in: SchemaIn = ...,
    register: bool = ...,
    validate: bool = ...,
) -> Serde[V]: ...
@overload
def JsonSchema(
    value: str,
    *,
    subject: str = ...,
    strategy: Strategy = ...,
    version: Version = ...,
    metadata: Mapping[str, str] | None = ...,
    schema_in: SchemaIn = ...,
    register: bool = ...,
    validate: bool = ...,
) -> Serde[Any]: ...
def JsonSchema(  # noqa: N802  (reads as a type)
    value: Any,
    *,
    subject: str = "",
    strategy: Strategy = "topic",
    version: Version = None,
    metadata: Mapping[str, str] | None = None,
    schema_in: SchemaIn = "prefix",
    register: bool = False,
    validate: bool = False,
) -> Serde[Any]:
    """Return a serde of values in JSON that name a JSON Schema in a schema registry.

    `value` is the class of the values, or a subject whose schema `sluice schema pull` has written,
    as for `Avro`. Values are decoded by the class, as other JSON is. With `validate=True`, values
    that are read are also checked against the schema that they name, and written values against the
    schema with which they are written. Reading and writing then take many times as long. The other
    parameters are the same as for `Avro`.
    """
    chosen = RegistryFormat(
        kind="JSON",
        subject=subject,
        strategy=strategy,
        version=version,
        metadata=dict(metadata or {}),
        schema_in=schema_in,
        registers=register,
        validates=validate,
    )
    if isinstance(value, str):
        return _of_subject("JsonSchema", value, chosen)
    schema = _json_schema_of("JsonSchema", value)
    return _serde(value, replace(chosen, schema=schema, record=value.__name__))


@overload
def Protobuf(
    value: type[V],
    *,
    subject: str = ...,
    strategy: Strategy = ...,
    version: Version = ...,
    metadata: Mapping[str, str] | None = ...,
    schema_in: SchemaIn = ...,
    register: bool = ...,
    package: str = ...,
    message: str = ...,
) -> Serde[V]: ...
@overload
def Protobuf(
    value: str,
    *,
    subject: str = ...,
    strategy: Strategy = ...,
    version: Version = ...,
    metadata: Mapping[str, str] | None = ...,
    schema_in: SchemaIn = ...,
    register: bool = ...,
    package: str = ...,
    message: str = ...,
) -> Serde[Any]: ...
def Protobuf(  # noqa: N802  (reads as a type)
    value: Any,
    *,
    subject: str = "",
    strategy: Strategy = "topic",
    version: Version = None,
    metadata: Mapping[str, str] | None = None,
    schema_in: SchemaIn = "prefix",
    register: bool = False,
    package: str = "",
    message: str = "",
) -> Serde[Any]:
    """Return a serde of messages of Protobuf whose schemas are in a schema registry.

    `value` is the class of the values, or a subject whose schema `sluice schema pull` has written,
    as for `Avro`; `message` names a message of this schema, by default the first one. Each message
    is decoded by the schema that it names, and its fields are matched by name with the fields of
    the class. With a class, messages are written in proto3, with the fields of the class numbered
    in their order: add new fields at the end. `package` is the package of the written schema. The
    other parameters are the same as for `Avro`.
    """
    chosen = RegistryFormat(
        kind="PROTOBUF",
        subject=subject,
        strategy=strategy,
        version=version,
        metadata=dict(metadata or {}),
        schema_in=schema_in,
        registers=register,
    )
    if isinstance(value, str):
        return _of_subject("Protobuf", value, chosen, message)
    schema, problem, advice = "", "", ""
    contracts.sql_type(value)
    try:
        schema = proto_of_contract(value, package)
    except TopologyError as error:
        problem, advice = error.detail, error.next_step
    record = value.__name__
    if package and strategy != "topic":
        record = f"{package}.{record}"
    of_class = replace(chosen, schema=schema, problem=problem, advice=advice, record=record)
    return _serde(value, of_class)


def _with_numbers(schema: Any) -> Any:
    """Return a JSON Schema in which decimals are numbers, as Sluice writes them."""
    if isinstance(schema, list):
        return [_with_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _with_numbers(each) for name, each in schema.items()}
    if plain.get("format") == "decimal":
        return {**plain, "type": "number"}
    return plain
