"""Writes and reads the records of a test whose schemas are in a registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.registered_values import plain_values
from sluice.errors import TopologyError
from sluice.plan import Job
from sluice.registry.memory import MemoryRegistry
from sluice.registry.registry import UnknownSchemaError
from sluice.testing.piped_records import json_bytes
from sluice.values.avro_written import UnwritableError
from sluice.values.registered_schemas import (
    KEY_HEADER,
    VALUE_HEADER,
    RegisteredSchema,
    named_schema,
    prefix,
)
from sluice.values.registry_formats import RegistryFormat
from sluice.values.stored_values import plain_model
from sluice.values.topic_patterns import matches

_EXACT = (bytes, date, datetime, Decimal, UUID)


@dataclass(frozen=True)
class RegisteredRecords:
    """The formats of a job's topics, and the registry of the test.

    The registry has the pipeline's schemas before the first record.
    """

    registry: MemoryRegistry
    contracts: Mapping[str, Any]
    """Topic or pattern → the type of the values that the pipeline reads there."""
    read: Mapping[str, RegistryFormat]
    """Topic or pattern → the format of the values that the pipeline reads there."""
    written: Mapping[str, RegistryFormat]
    keys: Mapping[str, RegistryFormat]
    """Topic → the format of its keys."""
    _encoders: dict[int, RegisteredEncoder] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, registry: MemoryRegistry) -> RegisteredRecords:
        read: dict[str, RegistryFormat] = {}
        contracts: dict[str, Any] = {}
        for source, of_source in job.registered_sources():
            read[source.topic] = of_source
            contracts[source.topic] = str if source.contract is None else source.value_class
        written: dict[str, RegistryFormat] = {}
        for sink, of_sink in job.registered_sinks():
            written[sink.topic] = of_sink
        keys: list[tuple[str, RegistryFormat]] = []
        for source in (*job.streams, *(table.source for table in job.tables)):
            if source.key_decode is not None and isinstance(
                source.key_decode.value, RegistryFormat
            ):
                keys.append((source.topic, source.key_decode.value))
        for sink in job.sinks:
            if sink.encode_key is not None and isinstance(sink.encode_key.value, RegistryFormat):
                keys.append((sink.topic, sink.encode_key.value))
        for topic, of_topic in (*read.items(), *written.items(), *keys):
            if not of_topic.schema:
                continue
            subject = of_topic.subject_in(topic)
            registry.register(subject, of_topic.schema, of_topic.kind, of_topic.references)
        return cls(registry, contracts, read, written, dict(keys))

    def encoded(self, topic: str, value: Any) -> Any:
        """Return the bytes of a value for a topic, by the newest schema of the topic's subject.

        Values of type bytes and None, and values of topics in other formats, stay as they are.
        """
        of_topic = self._format(topic)
        if of_topic is None or value is None or isinstance(value, bytes):
            return value
        schema = self._newest(of_topic.subject_in(topic))
        if schema.kind == "JSON":
            if not isinstance(value, str):
                value = json_bytes(value, self._contract(topic))
            return prefix(schema.id) + (value.encode() if isinstance(value, str) else value)
        encoder = self._encoders.setdefault(schema.id, RegisteredEncoder(schema, in_header=False))
        plain = msgspec.to_builtins(value, builtin_types=_EXACT, enc_hook=plain_model)
        try:
            return encoder(plain)
        except UnwritableError as error:
            raise TopologyError(
                f"The value for {topic} does not fit {schema}: {error}.",
                next_step="Correct the value, or pipe bytes to test how invalid values are read.",
            ) from None

    def _newest(self, subject: str) -> RegisteredSchema:
        try:
            return self.registry.version(subject)
        except UnknownSchemaError:
            raise TopologyError(
                f"The registry of the test has no schema of {subject}, "
                "and Sluice cannot make one from the class.",
                next_step=f"Register a schema: driver.registry.register({subject!r}, text).",
            ) from None

    def encoded_key(self, topic: str, key: Any) -> Any:
        """Return the bytes of a key for a topic. Keys of type bytes stay as they are."""
        of_topic = self.keys.get(topic)
        if of_topic is None or key is None or isinstance(key, bytes):
            return key
        schema = self.registry.version(of_topic.subject_in(topic))
        encoder = RegisteredEncoder(schema, in_header=False)
        if encoder.takes_json:
            return encoder(msgspec.json.encode(key).decode())
        return encoder(msgspec.to_builtins(key, builtin_types=_EXACT, enc_hook=plain_model))

    def decoded_key(
        self, topic: str, key: bytes | None, headers: Iterable[Mapping[str, Any]]
    ) -> Any:
        """Return the key of an output as plain data."""
        if key is None or topic not in self.keys:
            return key
        return self.decoded(key, headers, KEY_HEADER)

    def _contract(self, topic: str) -> Any:
        for name, contract in self.contracts.items():
            if name == topic or matches(name, topic):
                return contract
        return None

    def _format(self, topic: str) -> RegistryFormat | None:
        for name, of_topic in self.read.items():
            if name == topic or matches(name, topic):
                return of_topic
        return None

    def decoded(
        self, value: bytes | None, headers: Iterable[Mapping[str, Any]], name: str = VALUE_HEADER
    ) -> Any:
        """Return an output value as plain data."""
        if value is None:
            return None
        by_name = {header["key"]: header["value"] for header in headers}
        ref, begin = named_schema(value, by_name.get(name))
        schema = self.registry.schema(ref)
        return plain_values(schema)(value[begin:], not begin)
